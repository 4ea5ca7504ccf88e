"""Oscine: a serving engine for the Qwen3-TTS 12 Hz speech models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oscine.api import Oscine
    from oscine.types import CheckpointError, OscineError, RequestError, Speech, SpeechRequest, TooLongError, VoiceError
    from oscine.voice import Voice

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Oscine",
    "OscineError",
    "RequestError",
    "Speech",
    "SpeechRequest",
    "TooLongError",
    "Voice",
    "VoiceError",
]

_HOMES = {"Oscine": "oscine.api", "Voice": "oscine.voice"}


def __getattr__(name: str) -> Any:
    # On first use, so that `import oscine.types` (server, bench) does not pull in torch.
    if name not in __all__:
        raise AttributeError(f"module 'oscine' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "oscine.types")), name)
