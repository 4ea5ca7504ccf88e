"""One request and its answer as they crossed the wire: bytes and the times at which they came, nothing judged yet."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

from oscine.bench.workload import Utterance

_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an answer does not count. Kinds are listed in docs/metrics.md. The message is one line that a terminal can
    show, whatever a server wrote."""

    kind: str
    message: str = ""

    def __post_init__(self) -> None:
        line = " ".join(self.message.split())[:_MESSAGE_CHARACTERS]
        object.__setattr__(self, "message", "".join(letter if letter.isprintable() else "?" for letter in line))


@dataclass(slots=True)
class Exchange:
    """Times are readings of the client's clock. Arrays, not lists of objects: thousands of these are alive in a run,
    and Python's garbage collector does not look into arrays."""

    utterance: Utterance
    due_s: float  # when it was to be sent
    sent_s: float = 0.0
    end_s: float = 0.0  # the last byte of a whole answer, or the failure
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    arrived_s: array[float] = field(default_factory=lambda: array("d"))  # of every read that brought part of the body
    body_bytes: array[int] = field(default_factory=lambda: array("q"))  # of the body, up to and with that read
    body: list[bytes] = field(default_factory=list)
    failure: Failure | None = None

    def take(self, now_s: float, piece: bytes) -> None:
        """A piece that comes in the same read as the last one has the same time and is one arrival with it."""
        self.body.append(piece)
        total = (self.body_bytes[-1] if self.body_bytes else 0) + len(piece)
        if self.arrived_s and self.arrived_s[-1] == now_s:
            self.body_bytes[-1] = total
        else:
            self.arrived_s.append(now_s)
            self.body_bytes.append(total)


class Client(Protocol):
    async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
        """Sends one request, now, and waits for its end. Never raises for what a server or a network does: that is the
        exchange's failure."""

    async def close(self) -> None: ...
