"""Clock points in the worker: wrappers of Runner and Backend. See clock_points.py.

Times of a GPU are events, placed on the host's clock by the last event that the host waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.clock_points import ClockPoints, clock
from oscine.request import SamplingParams
from oscine.runner.backend import Backend
from oscine.runner.cuda.graphs import SideStream
from oscine.runner.runner import FrameOutput, SlotAssignment, Ticket
from oscine.runner.slot_runner import SlotRunner


class DeviceClock:
    """Marks in the device's queue of work, and their times once the device has reached them."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._anchor: tuple[torch.cuda.Event, float] | None = None  # an event, and when the host saw it

    def record(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event | float:
        """Records in the current stream unless another one is given."""
        if not self._on_gpu:
            return clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event

    def wait(self, mark: torch.cuda.Event | float) -> None:
        if isinstance(mark, torch.cuda.Event) and (self._anchor is None or not mark.query()):
            mark.synchronize()
            self._anchor = mark, clock()

    def at_s(self, mark: torch.cuda.Event | float) -> float:
        if isinstance(mark, float):
            return mark
        assert self._anchor is not None
        event, seen_s = self._anchor
        return seen_s + event.elapsed_time(mark) / 1e3


class TimedBackend:
    """Marks the work of a tick on the device: its prompts and its frame, with the copy to the host."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.device_clock = backend, DeviceClock(backend.model.device)
        self.launch_begun_s = 0.0
        self.marks: list[torch.cuda.Event | float] = []  # of the last launch: begun, framed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def launch(self, slots: Sequence[int], sampling: Sequence[SamplingParams], max_context: int) -> Ticket:
        self.launch_begun_s = clock()
        begun = self.device_clock.record()
        ticket = self._backend.launch(slots, sampling, max_context)
        # The audio may be made beside the next tick, on a stream of its own.
        side: SideStream | None = getattr(self._backend, "codec_stream", None)
        self.marks = [begun, self.device_clock.record(side.stream if side else None)]
        return ticket


class TimedRunner(SlotRunner):
    """Marks admissions, and the first tick of each admitted request."""

    points: ClockPoints  # set before the engine is built

    def __init__(self, backend: Backend) -> None:
        self._timed = TimedBackend(backend)
        super().__init__(self._timed)  # type: ignore[arg-type]
        self._admitted: list[int] = []  # seeds of requests that no tick has run yet
        self._ticks: dict[int, tuple[list[int], list[torch.cuda.Event | float]]] = {}  # by the ticket's id

    def admit(self, assignment: SlotAssignment) -> None:
        seed = assignment.sampling.seed
        self.points.mark(seed, "admit_begun")
        super().admit(assignment)
        self.points.mark(seed, "admitted")
        self._admitted.append(seed)

    def launch(self, slots: Sequence[int]) -> Ticket:
        seeds, self._admitted = self._admitted, []
        ticket = super().launch(slots)
        for seed in seeds:
            self.points.mark(seed, "launched", self._timed.launch_begun_s)
        self._ticks[id(ticket)] = seeds, self._timed.marks
        return ticket

    def collect(self, ticket: Ticket) -> FrameOutput:
        seeds, marks = self._ticks.pop(id(ticket))
        device_clock = self._timed.device_clock
        device_clock.wait(marks[-1])
        output = super().collect(ticket)
        for seed in seeds:
            for name, mark in zip(("device_begun", "framed"), marks, strict=True):
                self.points.mark(seed, name, device_clock.at_s(mark))
            self.points.mark(seed, "collected")
        return output
