"""Times of launches, graphs and successive frames, and the bandwidth of a GPU's memory."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from oscine.runner.cuda.graphs import no_collection
from oscine.runner.runner import Runner, Ticket

_COPIED_BYTES = 2**31


def median_ms(replay: Callable[[], object], repeats: int = 30, warm_ups: int = 3) -> float:
    """Device time of one call, between events."""
    for _ in range(warm_ups):
        replay()
    times_ms = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times_ms.append(begin.elapsed_time(end))
    return statistics.median(times_ms)


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, reads plus writes."""
    a = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * _COPIED_BYTES / (median_ms(lambda: b.copy_(a), 10) / 1e3)


# --- graphs ---


def captured(call: Callable[[], object], warm_ups: int = 2, copies: int = 1) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_ups):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    return graph


def replay_us(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    return 1e3 * median_ms(graph.replay, replays, warm_ups=1)


def graph_us(call: Callable[[], object], copies: int = 1) -> float:
    """Microseconds of one call: the median over replays of a CUDA graph that holds `copies` of them."""
    return replay_us(captured(call, 1, copies), 9) / copies


# --- frames ---


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
