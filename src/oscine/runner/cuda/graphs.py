"""One function of a size, captured as a CUDA graph at some sizes; any other size uses the next larger one."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import torch

_WARM_UPS = 2  # compiles kernels and lets libraries allocate what they keep


class GraphSet:
    """`run(size)` must enqueue work on fixed buffers and nothing else: no allocation that outlives it, no waiting."""

    def __init__(self, run: Callable[[int], None], sizes: Sequence[int], *, captured: bool) -> None:
        assert sizes, "at least one size"
        self._run = run
        self.sizes = sorted(set(sizes))
        self._captured = captured
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def size_for(self, wanted: int) -> int:
        """The smallest size that holds `wanted`."""
        assert wanted <= self.sizes[-1], (wanted, self.sizes[-1])
        return self.sizes[bisect.bisect_left(self.sizes, wanted)]

    def capture(self, progress: Callable[[int, int], None]) -> None:
        """All sizes, the largest first, in one memory pool: smaller graphs fit into what the larger ones left."""
        if not self._captured:
            return
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream()
        for done, size in enumerate(reversed(self.sizes), start=1):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    self._run(size)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._run(size)
            self._graphs[size] = graph
            progress(done, len(self.sizes))

    def replay(self, size: int) -> None:
        graph = self._graphs.get(size)
        if graph is None:
            self._run(size)  # graphs are off, or this size was not captured
        else:
            graph.replay()
