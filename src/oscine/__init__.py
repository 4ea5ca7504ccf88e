"""Oscine: a serving engine for the Qwen3-TTS 12 Hz speech models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oscine.api import Oscine, start_engine
    from oscine.audio.checks import ClipWarning
    from oscine.config import EngineConfig
    from oscine.errors import (
        CheckpointError,
        ConfigError,
        EngineError,
        OscineError,
        OverloadedError,
        RequestError,
        TooLongError,
        VoiceError,
    )
    from oscine.request import SpeechRequest, Turn
    from oscine.speech.events import Speech
    from oscine.speech.script import Utterance
    from oscine.text.options import TextOptions
    from oscine.types import AudioChunk, SpeechEngine
    from oscine.voice import Voice

__version__ = "0.1.0"

__all__ = [
    "AudioChunk",
    "CheckpointError",
    "ClipWarning",
    "ConfigError",
    "EngineConfig",
    "EngineError",
    "Oscine",
    "OscineError",
    "OverloadedError",
    "RequestError",
    "Speech",
    "SpeechEngine",
    "SpeechRequest",
    "TextOptions",
    "TooLongError",
    "Turn",
    "Utterance",
    "Voice",
    "VoiceError",
    "start_engine",
]

_MODULES = {
    "ClipWarning": "oscine.audio.checks",
    "EngineConfig": "oscine.config",
    "Oscine": "oscine.api",
    "TextOptions": "oscine.text.options",
    "Speech": "oscine.speech.events",
    "SpeechRequest": "oscine.request",
    "Turn": "oscine.request",
    "Utterance": "oscine.speech.script",
    "Voice": "oscine.voice",
    "start_engine": "oscine.api",
}


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that the server and the benchmark client do not import torch.
    if name not in __all__:
        raise AttributeError(f"module 'oscine' has no attribute {name!r}")
    module = "oscine.errors" if name.endswith("Error") else _MODULES.get(name, "oscine.types")
    return getattr(importlib.import_module(module), name)
