"""Values that clients of other servers spell in their own ways. SGLang-Omni takes `WAV` for `wav`, and for
`VoiceDesign` also `voice-design` and `voice_design`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeGuard, get_args

from pydantic import BeforeValidator

from oscine.config import FormatName

TaskName = Literal["CustomVoice", "VoiceDesign", "Base"]
_TASKS = {name.lower(): name for name in get_args(TaskName)}
_FORMATS = {name: name for name in get_args(FormatName)}


def _is_name(given: Any) -> TypeGuard[str]:
    return isinstance(given, str) and len(given) < 32  # of millions of characters, no other spelling is made


def _task_name(given: Any) -> Any:
    return _TASKS.get(given.replace("-", "").replace("_", "").lower(), given) if _is_name(given) else given


def _format_name(given: Any) -> Any:
    return _FORMATS.get(given.lower(), given) if _is_name(given) else given


TaskType = Annotated[TaskName | None, BeforeValidator(_task_name)]
ResponseFormat = Annotated[FormatName | None, BeforeValidator(_format_name)]
