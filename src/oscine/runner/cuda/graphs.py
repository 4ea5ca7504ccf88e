"""Captures a function of a batch size as CUDA graphs at some sizes; other sizes use the next larger graph."""

from __future__ import annotations

import bisect
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class GraphSet:
    """`run(size)` must only enqueue work on fixed buffers: no allocation that outlives it, no synchronization."""

    def __init__(
        self, run: Callable[[int], None], sizes: Sequence[int], *, captured: bool, priority: int = 0, warm: bool = False
    ) -> None:
        """`priority` of the kernels, as of a stream. `warm`: graphs captured earlier have loaded the kernels."""
        assert sizes, "at least one size"
        self.run = run
        self.sizes = sorted(set(sizes))
        self._captured, self._priority, self._warm = captured, priority, warm
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def size_for(self, wanted: int) -> int:
        """Returns the smallest size that holds `wanted`."""
        assert wanted <= self.sizes[-1], (wanted, self.sizes[-1])
        return self.sizes[bisect.bisect_left(self.sizes, wanted)]

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """Captures all sizes in one memory pool, the largest first, so that smaller graphs reuse its memory."""
        if not self._captured:
            return
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(priority=self._priority)
        stream.wait_stream(torch.cuda.current_stream())
        with no_collection(), torch.cuda.stream(stream):
            for done, size in enumerate(reversed(self.sizes), start=1):
                if not self._warm:
                    self.run(size)  # loads kernels and lets libraries allocate: a capture cannot
                self._graphs[size] = self._captured_run(size, pool)
                progress(done, len(self.sizes))
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()  # errors of the runs are raised here
        torch.cuda.empty_cache()

    def _captured_run(self, size: int, pool: Any) -> torch.cuda.CUDAGraph:
        # Not `torch.cuda.graph`, which waits for the device and returns all cached memory before each capture.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool)
        try:
            self.run(size)
        finally:
            graph.capture_end()
        return graph

    def replay(self, size: int) -> None:
        graph = self._graphs.get(size)
        if graph is None:
            self.run(size)  # graphs are off, or this size was not captured
        else:
            graph.replay()


@contextmanager
def no_collection() -> Iterator[None]:
    """Disables garbage collection in the body. A collection pauses the process, and may free the graphs of an engine
    that has ended, which is not allowed during a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# --- A second stream of the device, which runs concurrently to the current one. A CPU has none.


HIGH_PRIORITY = -1


class SideStream:
    """A second stream. The caller orders work across streams; work within a stream runs in order."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY) if device.type == "cuda" else None
        if self.stream is not None:
            self._current_done = torch.cuda.Event()

    @contextmanager
    def after_current(self) -> Iterator[None]:
        """Enqueues the body's work here, after everything that the current stream has so far."""
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream()
        self._current_done.record(current)
        self._current_done.wait(self.stream)
        torch.cuda.set_stream(self.stream)  # torch.cuda.stream() would look up the current device and stream again
        try:
            yield
        finally:
            torch.cuda.set_stream(current)

    def event(self) -> torch.cuda.Event | None:
        """Returns an event that the device reaches after everything enqueued here so far."""
        return None if self.stream is None else self.stream.record_event()

    def reads(self, tensors: Iterable[Tensor]) -> None:
        """Keeps the memory of these tensors until the work enqueued here has read them."""
        if self.stream is not None:
            for tensor in tensors:
                tensor.record_stream(self.stream)

    def join(self) -> None:
        """Lets the current stream wait for everything enqueued here so far."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


def wait_for(event: torch.cuda.Event | None) -> None:
    """Lets the current stream wait for an event; None on a CPU."""
    if event is not None:
        event.wait()
