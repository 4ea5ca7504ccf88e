"""Settings of a live session: those of a request, and of the WebSocket itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from oscine.server.api.schemas import VoiceOptions
from oscine.speech.plan import Split

# Events beyond those of vLLM-Omni's protocol. Some of its clients refuse events that they do not know.
OwnEvent = Literal["session.ready", "audio.segment", "audio.words"]


class LiveConfig(VoiceOptions):
    """`session.config` of the WebSocket."""

    type: Literal["session.config"]
    events: Annotated[list[OwnEvent], Field(fail_fast=True)] | None = Field(
        None, description="Events to send beside the usual ones."
    )
    timestamp_type: Literal["word"] | None = Field(
        None, description="As LiveKit's plug-in asks for word timestamps: they come with `audio.done`."
    )
    timestamp_transport_strategy: Literal["sync"] | None = None
    split_granularity: Literal["none", "sentence", "clause"] | None = Field(
        None, description="Each sentence or clause is a file of its own, between `audio.start` and `audio.done`."
    )
    stream_audio: bool | None = Field(
        None,
        description="true: audio as it is generated. false: each file when it is complete. Default: false for WAV and "
        "FLAC, and for clients of vLLM-Omni.",
    )
    streaming_mode: Literal["sentence", "token_level", "sentence_commit"] | None = Field(
        None, description="As in vLLM-Omni. Text is always spoken as it arrives; all but `sentence` stream the audio."
    )

    @property
    def streams(self) -> bool | None:
        """Whether audio is sent as it is generated. None: the client has not said."""
        if self.stream_audio is None and self.streaming_mode in ("token_level", "sentence_commit"):
            return True
        return self.stream_audio

    @property
    def split(self) -> Split | None:
        return None if self.split_granularity == "none" else self.split_granularity
