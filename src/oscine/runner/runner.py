"""What an engine asks of whatever makes the frames: fixed slots, everything enqueued, nothing waited for but results.

A slot is one row of the device's state. The engine decides who runs; the runner knows no requests and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from oscine.types import Codes, Prompt, SamplingParams


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """A prompt for a free slot."""

    slot: int
    prompt: Prompt
    sampling: SamplingParams
    streaming_text: bool = False  # more text may follow: end of speech is held back until it has ended


@dataclass(frozen=True, slots=True)
class FrameOutput:
    """One frame of every slot of a tick, in the order they were launched in."""

    slots: tuple[int, ...]
    codes: Codes  # [n, 16]; code 0 is the end-of-speech id where a slot has ended: its audio is not to be used
    pcm: npt.NDArray[np.int16]  # [n, samples per frame]


@dataclass(frozen=True, slots=True)
class RunnerCounts:
    """For whoever watches the engine (EngineStatus has the same names)."""

    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_bytes: int = 0
    memory_bytes: int = 0


class Ticket(Protocol):
    """A tick in flight."""

    def ready(self) -> bool: ...


class Runner(Protocol):
    slots: int  # rows that can be held at once
    sample_rate_hz: int
    samples_per_frame: int
    eos_id: int

    def admit(self, admission: SlotAssignment) -> None:
        """Fills the slot's state; its prefill is enqueued by the next launch at the latest, with those of others. The
        slot must be free. Raises RequestError where the prompt does not fit; nothing is held then."""

    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None:
        """Text ids for later frames, one per frame; `ended` lets the slot's speech end."""

    def launch(self, slots: Sequence[int]) -> Ticket:
        """Enqueues one frame for each of these slots, behind everything enqueued before. Does not wait."""

    def collect(self, ticket: Ticket) -> FrameOutput:
        """Waits for a tick. Tickets are collected in the order of their launches; at most two are in flight."""

    def release(self, slot: int) -> None:
        """Gives the slot's memory back. A frame of it that is still in flight does no harm."""

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        """Whether the memory for this prompt and its longest speech is free now."""

    def counts(self) -> RunnerCounts:
        """As they are now. Waits for nothing that is enqueued."""
