"""The interface between the engine and the model: fixed slots, asynchronous ticks.

A slot is one row of the device's state. The engine decides which slots run; the runner knows no requests and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import Codes
from oscine.request import SamplingParams
from oscine.types import Prompt


@dataclass(frozen=True, slots=True)
class SlotAssignment:
    """A prompt for a free slot."""

    slot: int
    prompt: Prompt
    sampling: SamplingParams
    streaming_text: bool = False  # more text may follow: end of speech is suppressed until the text has ended


@dataclass(frozen=True, slots=True)
class FrameOutput:
    """One frame of every slot of a tick, in launch order."""

    slots: tuple[int, ...]
    codes: Codes  # [n, 16]; where code 0 is the end-of-speech id, the slot has ended and its audio is invalid
    pcm: npt.NDArray[np.int16]  # [n, samples per frame]
    failed: npt.NDArray[np.bool_]  # [n]: its logits were not finite, so its codes and audio mean nothing
    done_s: float | None = None  # completion by time.monotonic; None: about the time of collection


@dataclass(frozen=True, slots=True)
class RunnerCounts:
    """Counters with the same names as in EngineStatus."""

    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_bytes: int = 0
    memory_bytes: int = 0


class Ticket(Protocol):
    """A handle on a tick in flight."""

    @property
    def with_prompts(self) -> bool:
        """Whether prompts run in the same launches as the frames, which then take longer."""

    def begun(self) -> bool:
        """Whether the device has begun the frames themselves, after the prefills that were enqueued before them."""

    def device_free(self) -> bool:
        """Whether the device can begin the next tick. The audio of this one may not be complete yet."""

    def wait_device_free(self) -> None: ...

    def ready(self) -> bool:
        """Whether the frames are complete."""


class Runner(Protocol):
    slots: int  # rows that can run at once
    sample_rate_hz: int
    samples_per_frame: int
    eos_id: int

    def admit(self, assignment: SlotAssignment) -> None:
        """Fills a free slot. The device's part is enqueued by the next launch at the latest, together with that of
        other requests. Raises RequestError if the prompt does not fit; the slot then stays free."""

    def append_text(self, slot: int, text_ids: Sequence[int], *, ended: bool) -> None:
        """Adds text ids for later frames, one per frame. `ended` allows the slot to end its speech."""

    def launch(self, slots: Sequence[int]) -> Ticket:
        """Enqueues one frame for each of these slots, after all earlier work. Does not wait."""

    def collect(self, ticket: Ticket) -> FrameOutput:
        """Waits for a tick. Tickets are collected in launch order; at most two are in flight."""

    def release(self, slot: int) -> None:
        """Frees the slot and its blocks. Allowed while a frame of the slot is in flight."""

    def room_for(self, prompt: Prompt, sampling: SamplingParams) -> bool:
        """Whether enough blocks are free for this prompt and its longest possible speech."""

    def counts(self) -> RunnerCounts:
        """Returns the counters without waiting for the device."""
