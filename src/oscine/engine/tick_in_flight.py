"""A tick that was launched and is not collected yet."""

from __future__ import annotations

from dataclasses import dataclass

from oscine.engine.session import Session
from oscine.runner.runner import Ticket


@dataclass(frozen=True, slots=True)
class TickInFlight:
    """Holds sessions, not slots: a slot may have a new owner when the frame arrives."""

    ticket: Ticket
    sessions: tuple[Session, ...]
    prefill_rows: int
    begun_s: float
