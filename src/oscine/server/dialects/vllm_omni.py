"""WS /v1/audio/speech/stream for clients of vLLM-Omni. Their messages and events are also ours; the defaults differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oscine.audio.formats import FormatName
from oscine.server.live.config import LiveConfig
from oscine.server.live.connection import LiveConnection
from oscine.speech.plan import SpeechPlan


class VllmOmniConnection(LiveConnection):
    default_format: FormatName = "wav"

    def _sends_whole_files(self, config: LiveConfig, plan: SpeechPlan) -> bool:
        """No file is sent as a stream unless the client asks for one."""
        return not config.streams


def is_vllm_omnis(config: Mapping[str, Any]) -> bool:
    """Whether a client of vLLM-Omni sent this `session.config`: its clients name a task or a mode; `events` is ours."""
    names_one = config.get("task_type") is not None or config.get("streaming_mode") is not None
    return names_one and config.get("events") is None
