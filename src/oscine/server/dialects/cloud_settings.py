"""Settings of Qwen's hosted speech models as fields of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"text": "input", "language_type": "language", "speech_rate": "speed", "enable_tn": "normalize"}
# Settings without an effect here count as not given at these values, which ask for nothing.
_NEUTRAL = {"volume": 50, "pitch_rate": 1, "optimize_instructions": False}


def own_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are not ours keep their names."""
    asked = {name: value for name, value in settings.items() if name not in _NEUTRAL or value != _NEUTRAL[name]}
    if "format" in asked:  # of the HTTP call
        asked.setdefault("response_format", asked.pop("format"))
    return {_NAMES.get(name, name): value for name, value in asked.items()}


def cloud_name(field: str) -> str:
    """The cloud's name of one of our fields."""
    return next((name for name, own in _NAMES.items() if own == field), field)
