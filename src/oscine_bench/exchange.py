"""One request and its response as raw bytes and arrival times; nothing is decoded here."""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any, Protocol

from oscine_bench.workload import PlannedRequest

_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed. docs/metrics.md lists the kinds. The message is printable and fits one line."""

    kind: str
    message: str = ""

    def __post_init__(self) -> None:
        line = " ".join(self.message.split())[:_MESSAGE_CHARACTERS]
        object.__setattr__(self, "message", "".join(letter if letter.isprintable() else "?" for letter in line))


@dataclass(slots=True)
class Exchange:
    """Times are readings of the client's clock. Arrays, not lists: a run keeps thousands of these, and the garbage
    collector does not scan arrays."""

    request: PlannedRequest
    due_s: float  # scheduled time of sending
    sent_s: float = 0.0
    end_s: float = 0.0  # last byte of a complete response, or the failure
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    arrived_s: array[float] = field(default_factory=lambda: array("d"))  # one entry per read that carried body bytes
    body_bytes: array[int] = field(default_factory=lambda: array("q"))  # size of the body after that read
    body: list[bytes] = field(default_factory=list)
    failure: RequestFailure | None = None

    def add(self, now_s: float, piece: bytes) -> None:
        """Adds a read. Pieces of the same read have the same time and count as one arrival."""
        self.body.append(piece)
        total = (self.body_bytes[-1] if self.body_bytes else 0) + len(piece)
        if self.arrived_s and self.arrived_s[-1] == now_s:
            self.body_bytes[-1] = total
        else:
            self.arrived_s.append(now_s)
            self.body_bytes.append(total)


class BenchClient(Protocol):
    async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        """Sends one request now and waits for its end. Errors of the server or the network become the exchange's
        failure; they are never raised."""

    async def close(self) -> None: ...


def error_message(body: bytes) -> str:
    """Extracts the message of an OpenAI-style or FastAPI-style error; returns any other body as it is."""
    text = body.decode("utf-8", "replace").strip()
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        return text
    if isinstance(parsed, dict):
        inner = parsed.get("error", parsed)
        parsed = inner.get("message", inner.get("detail", inner)) if isinstance(inner, dict) else inner
    return str(parsed)
