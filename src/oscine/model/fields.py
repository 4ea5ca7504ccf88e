"""JSON files of a checkpoint, read with errors that name the file and the full key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oscine.types import CheckpointError

_LARGEST = 1e30  # more is no fp32


class Fields:
    def __init__(self, where: str, values: Any) -> None:
        if not isinstance(values, dict):
            raise CheckpointError(f"{where} should be a JSON object, found {type(values).__name__}")
        self.where, self.values = where, values

    def _take(self, key: str, kinds: tuple[type, ...], wanted: str) -> Any:
        if key not in self.values:
            raise CheckpointError(f"{self.where}.{key} is missing; is this a complete Qwen3-TTS 12 Hz checkpoint?")
        value = self.values[key]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise CheckpointError(f"{self.where}.{key} should be {wanted}, found {value!r}")
        return value

    def count(self, key: str) -> int:
        value: int = self._take(key, (int,), "a whole number")
        if value < 0:
            raise CheckpointError(f"{self.where}.{key} should not be negative, found {value}")
        return value

    def size(self, key: str) -> int:
        value = self.count(key)
        if value < 1:
            raise CheckpointError(f"{self.where}.{key} should be at least 1, found {value}")
        return value

    def id(self, key: str, vocab: int) -> int:
        value = self.count(key)
        if value >= vocab:
            raise CheckpointError(f"{self.where}.{key} is {value}, but its table has {vocab} rows")
        return value

    def flag(self, key: str) -> bool:
        return bool(self._take(key, (bool,), "true or false"))

    def number(self, key: str) -> float:
        return self.between(key, -_LARGEST, _LARGEST)

    def between(self, key: str, least: float, most: float) -> float:
        value = self._take(key, (int, float), "a number")
        if not least <= value <= most:  # NaN is in no range
            raise CheckpointError(f"{self.where}.{key} should be a number from {least:g} to {most:g}, found {value!r}")
        return float(value)

    def text(self, key: str) -> str:
        return str(self._take(key, (str,), "a string"))

    def object(self, key: str) -> Fields:
        return Fields(f"{self.where}.{key}", self._take(key, (dict,), "an object"))

    def sizes(self, key: str) -> tuple[int, ...]:
        values = self._take(key, (list,), "a list of whole numbers")
        if not values or not all(type(value) is int and value > 0 for value in values):
            raise CheckpointError(f"{self.where}.{key} should be a list of positive whole numbers, found {values!r}")
        return tuple(values)

    def ids(self, key: str, vocab: int) -> dict[str, int]:
        fields = self.object(key)
        return {name.lower(): fields.id(name, vocab) for name in fields.values}

    def expect(self, key: str, wanted: Any) -> None:
        """Values that this code computes with as constants. Absent means the architecture's usual one."""
        if key in self.values and self.values[key] != wanted:
            raise CheckpointError(f"{self.where}.{key} is {self.values[key]!r}; only {wanted!r} is supported")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing in {path.parent}") from None
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
