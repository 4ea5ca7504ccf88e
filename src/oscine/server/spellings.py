"""Values that clients write in their own ways, and what they mean here. A strict server refuses them.

Names may be written as in SGLang-Omni: `WAV` for `wav`, `voice-design` for `VoiceDesign`. `ogg` is the file that an
`opus` is, `ulaw` and OpenAI's `g711_ulaw` are `mulaw`. Numbers and booleans may come as text, whole numbers with a
point. schemas.py reads what it refuses once more with these functions, so that a value of the right type costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard, get_args

from pydantic import BeforeValidator

from oscine.audio.formats import FormatName, SampleRate

TaskName = Literal["CustomVoice", "VoiceDesign", "Base"]
_TASKS = {name.lower(): name for name in get_args(TaskName)}
_FORMATS = {
    **{name: name for name in get_args(FormatName)},
    "ogg": "opus",
    **dict.fromkeys(("ulaw", "pcmu", "g711_ulaw"), "mulaw"),
    **dict.fromkeys(("pcma", "g711_alaw"), "alaw"),
}

_MAX_CHARS = 32  # of millions of characters, no other spelling is made
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}


def _is_short(given: Any) -> TypeGuard[str]:
    return isinstance(given, str) and len(given) <= _MAX_CHARS


def _task_name(given: Any) -> Any:
    return _TASKS.get(given.replace("-", "").replace("_", "").lower(), given) if _is_short(given) else given


def _format_name(given: Any) -> Any:
    return _FORMATS.get(given.lower(), given) if _is_short(given) else given


def meant_boolean(given: object) -> bool | None:
    """Reads a boolean. Returns None for a value that is neither true nor false."""
    if isinstance(given, int):
        given = str(given)
    return _BOOLEANS.get(given.strip().lower()) if _is_short(given) else None


def _meant_number(given: object) -> float | None:
    return float(given) if _is_short(given) and _NUMBER.fullmatch(given := given.strip()) else None


def _meant_integer(given: object) -> int | None:
    if _is_short(given) and _INTEGER.fullmatch(given.strip()):
        return int(given)  # a float would round large ones
    number = given if isinstance(given, float) else _meant_number(given)
    return int(number) if number is not None and number.is_integer() else None


def _rate(given: Any) -> Any:
    rate = _meant_integer(given)
    return given if rate is None else rate


# For queries, whose values are always text.
QueriedFormat = Annotated[FormatName, BeforeValidator(_format_name)]
QueriedRate = Annotated[SampleRate, BeforeValidator(_rate)]


def _meant_seed(seed: int) -> int:
    """A negative seed stands for the one with the same 64 bits, as in torch's generators. -1 is random."""
    return seed + 2**64 if -(2**63) <= seed < -1 else seed


def _meant_max_new_tokens(tokens: int) -> int:
    """The shortest speech is one frame, which is 2 here, because the last token never becomes a frame."""
    return 2 if tokens == 1 else tokens


# By the type of pydantic's error, and by the field.
_OF_TYPES: Mapping[str, Callable[[object], Any]] = {
    "bool_type": meant_boolean,
    "float_type": _meant_number,
    "int_type": _meant_integer,
}
_OF_CHOICES: Mapping[str, Callable[[object], Any]] = {
    "response_format": _format_name,
    "task_type": _task_name,
    "sample_rate": _meant_integer,
}
_OF_INTEGERS: Mapping[str, Callable[[int], int]] = {"seed": _meant_seed, "max_new_tokens": _meant_max_new_tokens}


def _meant_value(name: str, kind: str, given: object) -> Any:
    """Returns what a refused value of this field means. None, or the value itself: nothing else than it says."""
    read = _OF_CHOICES.get(name) if kind == "literal_error" else _OF_TYPES.get(kind)
    if read is not None:
        given = read(given)
    return _OF_INTEGERS[name](given) if name in _OF_INTEGERS and isinstance(given, int) else given


def meant_values(errors: Sequence[Any]) -> dict[str, Any]:
    """Returns what refused values mean, by field, if that is something else than they say. `errors` are pydantic's."""
    found = {}
    for error in errors:
        name, *inner = error["loc"] or ("",)
        value = None if inner else _meant_value(str(name), error["type"], error["input"])
        if value is not None and value is not error["input"]:
            found[str(name)] = value
    return found
