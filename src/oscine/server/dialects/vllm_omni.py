"""The WebSocket of vLLM-Omni, on `/v1/audio/speech/stream` like our own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oscine.audio.formats import FormatName
from oscine.server.live.connection import LiveConnection
from oscine.server.live.messages import ONE_STREAM, LiveConfig
from oscine.speech.plan import SpeechPlan, Split


def is_vllm_omnis(config: Mapping[str, Any]) -> bool:
    """Whether a client of vLLM-Omni sent this `session.config`: its clients name a task or a mode; `events` is ours."""
    names_one = config.get("task_type") is not None or config.get("streaming_mode") is not None
    return names_one and config.get("events") is None


class VllmOmniConnection(LiveConnection):
    """Clients of vLLM-Omni. Their messages and events are also ours; the defaults differ."""

    default_format: FormatName = "wav"

    def _split(self, config: LiveConfig) -> Split | None:
        """Each sentence is a file, unless the client asks for something else, or for a mode that makes one stream."""
        if config.split_granularity is None and config.streaming_mode not in ONE_STREAM:
            return "sentence"
        return config.split

    def _sends_whole_files(self, config: LiveConfig, plan: SpeechPlan) -> bool:
        """No file is sent as a stream unless the client asks for one."""
        return not config.streams
