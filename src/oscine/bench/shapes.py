"""What a file of JSON must look like to be read. A shape is a type; a dict of names and the shapes under them (others
may stand beside them); a list of one shape, not empty; or (None, shape), for what may be null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def fault_in(value: Any, shape: Any, name: str = "it") -> str | None:
    """The first place where something is missing, or is something else; in words."""
    if isinstance(shape, tuple):
        return None if value is None else fault_in(value, shape[1], name)
    if not isinstance(value, type(shape) if isinstance(shape, dict | list) else shape):
        return f"{name} cannot be {value!r:.40}"
    if isinstance(shape, list):
        parts = [(f"{name}[{place}]", one, shape[0]) for place, one in enumerate(value)]
        return _first_fault(parts) if parts else f"{name} is empty"
    if isinstance(shape, dict):
        missing = next((key for key in shape if key not in value), None)
        if missing is not None:
            return f"{name} has no {missing!r}"
        return _first_fault((f"{name}.{key}".removeprefix("it."), value[key], one) for key, one in shape.items())
    return None


def _first_fault(parts: Iterable[tuple[str, Any, Any]]) -> str | None:
    faults = (fault_in(value, shape, name) for name, value, shape in parts)
    return next((fault for fault in faults if fault is not None), None)
