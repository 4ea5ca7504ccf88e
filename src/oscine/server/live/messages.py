"""What a live session reads and tells: the messages of its protocol, and typed events that each connection renders in
the form of its own protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.types import Message

from oscine.errors import FieldError, OscineError, RequestError, TooLargeError, shown_name, unknown_choice
from oscine.server.http.errors import api_error, invalid_field
from oscine.server.http.json_body import parse_json
from oscine.server.http.websocket_limits import MAX_MESSAGE_BYTES
from oscine.server.schemas import LenientModel, StrictModel, TurnBody, VoiceOptions
from oscine.speech.events import Audio, Ended, SegmentEnded, Started, Words
from oscine.speech.plan import SpeechPlan, Split

# Events beyond those of vLLM-Omni's protocol. Some of its clients refuse events that they do not know.
OwnEvent = Literal["session.ready", "audio.segment", "audio.words"]
ONE_STREAM = ("token_level", "sentence_commit")  # of vLLM-Omni's modes: an utterance is one stream


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
        None,
        description="Each sentence or clause is a file of its own, between `audio.start` and `audio.done`. Default: "
        "none, or sentence for clients of vLLM-Omni.",
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
        """Whether audio is sent as it is generated, or None if the client has not said."""
        if self.stream_audio is None and self.streaming_mode in ONE_STREAM:
            return True
        return self.stream_audio

    @property
    def split(self) -> Split | None:
        return None if self.split_granularity == "none" else self.split_granularity


class InputText(LenientModel):
    """The next piece of text, spaces included. The first one starts an utterance."""

    type: Literal["input.text"]
    text: str


class InputTurn(TurnBody):
    """Begins a turn of a dialogue: the text after it, and its own, is spoken as it says."""

    _has_text = False
    type: Literal["input.turn"]


class InputDone(LenientModel):
    """Ends the text of the utterance."""

    type: Literal["input.done"]


class InputCommit(LenientModel):
    """Speaks the text so far to its end. The utterance goes on."""

    type: Literal["input.commit"]
    commit_id: Annotated[str, Field(max_length=256)] | int | None = None


class InputCancel(StrictModel):
    """Stops the speech. What the listener heard follows from the position, or from the time."""

    type: Literal["input.cancel"]
    played_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    utterance_index: int | None = Field(None, ge=0)


class InputClear(StrictModel):
    """Drops the text that is not being spoken yet. Other protocols have it, and this one has not."""

    type: Literal["input.clear"] = "input.clear"


class SentenceEnd(StrictModel):
    """Speaks a complete sentence now, because the next piece of text may come late. Other protocols imply it."""

    type: Literal["input.sentence_end"] = "input.sentence_end"


class SessionClose(LenientModel):
    """Ends the text, speaks the rest, and closes the connection."""

    type: Literal["session.close"]


ClientMessage = (
    LiveConfig | InputText | InputTurn | InputDone | InputCommit | InputClear | InputCancel | SentenceEnd | SessionClose
)
MESSAGES: dict[str, type[ClientMessage]] = {
    "session.config": LiveConfig,
    "input.text": InputText,
    "input.turn": InputTurn,
    "input.done": InputDone,
    "input.commit": InputCommit,
    "input.cancel": InputCancel,
    "session.close": SessionClose,
}


class RefusedConfigError(OscineError):
    """A `session.config` was refused for this reason."""

    def __init__(self, reason: OscineError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class TooMuchTextError(TooLargeError, FieldError):
    """The text of a message does not fit beside what waits to be spoken."""


class CloseConnection(Exception):  # noqa: N818
    """Ends the session with this close code. The client receives the `reason` first."""

    def __init__(self, code: int, reason: Exception | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, None if reason is None else api_error(reason)


Parsed = TypeVar("Parsed", bound=BaseModel)


def parse_object(frame: Message) -> dict[str, Any]:
    """Raises RequestError and CloseConnection."""
    text: str | None = frame.get("text")
    encoded: bytes = frame.get("bytes") or b"" if text is None else text.encode()
    if len(encoded) > MAX_MESSAGE_BYTES:
        limit = f"{MAX_MESSAGE_BYTES / 2**20:g} MiB"
        message = f"the message has {len(encoded)} bytes, the limit is {limit}; send less"
        raise CloseConnection(1009, TooLargeError(message))
    if text is None:
        message = "binary frames are not accepted; send JSON in text frames (a clip as base64, or upload it as a voice)"
        raise RequestError(message)
    fields = parse_json(encoded, what="message")
    if not isinstance(fields, dict):
        raise FieldError("the message must be a JSON object")
    return fields


def parse_message(frame: Message, kinds: Mapping[str, type[Parsed]]) -> Parsed:
    """`kinds` maps the `type` of a message to its fields. Raises RequestError and CloseConnection."""
    fields = parse_object(frame)
    kind = fields.get("type")
    if kind is None:
        raise FieldError(f"type is missing; possible: {', '.join(kinds)}", param="type")
    if not isinstance(kind, str) or kind not in kinds:
        given = shown_name(kind) if isinstance(kind, str) else type(kind).__name__
        raise FieldError(unknown_choice("type", given, kinds), param="type")
    try:
        return kinds[kind].model_validate(fields)
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None


# --- Events.


@dataclass(frozen=True, slots=True)
class SessionReady:
    """Settings were accepted."""

    config: LiveConfig
    plan: SpeechPlan
    model: str | None  # its name, if there are several


@dataclass(frozen=True, slots=True)
class TextCommitted:
    """The text so far is spoken to its end."""

    utterance: int
    commit_id: str | int | None  # the client's
    commit: int  # of the utterance, from 0
    chars: int  # since the last commit


@dataclass(frozen=True, slots=True)
class SpeechCancelled:
    """The client stopped the speech."""

    utterance: int | None  # the one that was playing
    played_s: float
    spoken_text: str  # the words of it that were played


@dataclass(slots=True, eq=False)
class LiveFile:
    """One file of an utterance: all of it, or a sentence; and what was sent of it."""

    utterance: int
    index: int  # in the utterance
    plan: SpeechPlan
    samples: int = 0  # of the engine
    size: int = 0  # bytes
    words: list[Words] = field(default_factory=list)
    spoken_text: str | None = None  # what was played before it was cancelled

    @property
    def duration_s(self) -> float:
        return self.plan.playback_s(self.samples)


@dataclass(frozen=True, slots=True)
class InFile:
    """An event of the speech. Audio has data, which is the whole file if the client asked for that."""

    file: LiveFile
    event: Started | Audio | SegmentEnded | Words | Ended


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    utterance: int
    files: int


LiveEvent = SessionReady | TextCommitted | SpeechCancelled | InFile | UtteranceEnded
