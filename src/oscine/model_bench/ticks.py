"""Successive frames of the same slots, run as the engine's loop runs them and timed on both sides: when results reach
the host, and between events on the device where there is one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from oscine.runner.runner import Runner, Ticket


@dataclass(frozen=True, slots=True)
class TickTimes:
    wall_ms: tuple[float, ...]  # from one frame's results on the host to the next one's
    device_ms: tuple[float, ...]  # from a frame's first command to its last, copies included; empty: no device


def time_ticks(runner: Runner, slots: Sequence[int], count: int, device: torch.device) -> TickTimes:
    """`count` frames, after one that fills the pipeline. Like the loop, it launches a frame before it collects the one
    before, and collects at once what is ready at once (always so on a CPU)."""
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
