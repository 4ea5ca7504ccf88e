"""Reads a checkpoint's JSON files into msgspec types; errors name the file, the key, the value and what is allowed."""

from __future__ import annotations

import json
import re
import reprlib
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from oscine.errors import CheckpointError

T = TypeVar("T")
_ABSENT = object()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing in {path.parent}") from None
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None


class Section(NamedTuple):
    """An object of a JSON file."""

    where: str  # the file and the path of the object, such as "config.json.talker_config"
    values: dict[str, Any]

    @staticmethod
    def of(where: str, values: Any) -> Section:
        return Section(where, _convert(where, values, dict[str, Any]))

    def section(self, key: str) -> Section:
        if key not in self.values:
            raise CheckpointError(_missing(f"{self.where}.{key}"))
        return Section.of(f"{self.where}.{key}", self.values[key])

    def decode(self, kind: type[T], **derived: Any) -> T:
        """Decodes an object of a JSON file. `derived` fields are not in the file, or not in this form."""
        return _convert(self.where, self.values | derived, kind)

    def require(self, key: str, *supported: Any, hint: str = "") -> None:
        found = self.values.get(key, _ABSENT)
        if found not in supported:
            shown = "missing" if found is _ABSENT else repr(found)
            raise CheckpointError(f"{self.where}.{key} is {shown}; supported: {', '.join(map(repr, supported))}{hint}")

    def expect(self, **constants: Any) -> None:
        """Checks values that the model code treats as constants. A missing key means the architecture's usual value."""
        for key, value in constants.items():
            if key in self.values:
                self.require(key, value)


def _convert(where: str, values: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise CheckpointError(_explain(str(error), values, where)) from None


def _explain(error: str, values: Any, where: str) -> str:
    """Adds the found value to msgspec's message, "Expected `int`, got `str` - at `$.key`"."""
    problem, _, path = error.partition(" - at `$")
    path = path.rstrip("`")
    if missing := re.fullmatch(r"Object missing required field `(.+)`", problem):
        return _missing(f"{where}{path}.{missing[1]}")
    found = values
    for key in re.findall(r"[^.\[\]]+", path):
        found = found[int(key) if isinstance(found, list) else key]
    allowed = problem.partition(", got ")[0]
    return f"{where}{path}: {allowed[0].lower()}{allowed[1:]}, found {reprlib.repr(found)}"


def _missing(key: str) -> str:
    return f"{key} is missing; is this a complete Qwen3-TTS 12 Hz checkpoint?"
