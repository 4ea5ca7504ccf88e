"""Times successive frames of the same slots, run as the engine loop runs them: on the host, when results arrive; on the
device, between events of the current stream."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oscine.runner.cuda.graphs import no_collection
from oscine.runner.runner import Runner, Ticket


@dataclass(frozen=True, slots=True)
class TickTimes:
    wall_ms: tuple[float, ...]  # between the results of two successive frames on the host
    device_ms: tuple[float, ...]  # of a frame's codes; the audio is on another stream. Empty on a CPU


def time_ticks(runner: Runner, slots: Sequence[int], count: int, device: torch.device) -> TickTimes:
    """Runs `count` frames after one that fills the pipeline. Like the engine loop, launches a frame before it collects
    the previous one, and collects at once when results are ready at once (a CPU without a thread for the codec).

    Without garbage collections: the engine excludes what exists after its start from them (`freeze_gc`)."""
    gc.collect()
    with no_collection():
        return _timed(runner, slots, count, device)


def _timed(runner: Runner, slots: Sequence[int], count: int, device: torch.device) -> TickTimes:
    marks: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    collected_s: list[float] = []

    def launch() -> Ticket:
        begin = _mark(device)
        ticket = runner.launch(slots)
        end = _mark(device)
        if begin and end:
            marks.append((begin, end))
        return ticket

    def collect(ticket: Ticket) -> None:
        runner.collect(ticket)
        collected_s.append(time.perf_counter())

    in_flight: Ticket | None = None
    for _ in range(count + 1):
        launched = launch()
        if in_flight:
            collect(in_flight)
        in_flight = launched
        if in_flight.ready():
            collect(in_flight)
            in_flight = None
    if in_flight:
        collect(in_flight)
    if marks:
        torch.cuda.synchronize(device)
    wall_ms = tuple((later - at) * 1e3 for at, later in itertools.pairwise(collected_s))
    return TickTimes(wall_ms, tuple(begin.elapsed_time(end) for begin, end in marks[1:]))


def _mark(device: torch.device) -> torch.cuda.Event | None:
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
