"""Reads server-sent events whose data has a type."""

import json
from collections.abc import Iterable
from typing import Any


def read_events(stream: str | Iterable[str]) -> list[dict[str, Any]]:
    """The data of each event, given the text or its lines. Every event is named by the type of its data."""
    lines = stream.split("\n") if isinstance(stream, str) else [line.removesuffix("\n") for line in stream]
    events, name = [], ""
    for line in filter(None, lines):
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
            continue
        assert field == "data", line
        events.append(json.loads(value))
        assert events[-1]["type"] == name
        name = ""
    return events
