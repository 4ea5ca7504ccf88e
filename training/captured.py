"""Captures a training step in one CUDA graph and replays it. A codec step has 3,000 small kernels; launched one by one
from Python they take twice as long as the GPU needs to run them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

Step = Callable[..., dict[str, Tensor]]


class CapturedStep:
    """Calls `step(**inputs)`: eagerly the first few times, then captures and replays it. Each call is one step.

    Requirements on the step:
    - Everything that changes between calls is in `inputs` (tensors of fixed shapes) or is changed in place on the
      device: weights, moments, learning rates, codebooks. Python numbers are read only once, during capture.
    - No synchronization with the host: no item(), no `if tensor`, no shapes that depend on values, no host copies.
    - Random numbers come from the device's generator, which advances over replays.
    - Gradients are set to None before each backward, so that the captured ones are in the graph's memory pool.
    - Results are detached. A result with an autograd graph would tie the next backward to the previous stream, and
      a capture must stay on its stream.

    Every replay writes into the same result tensors: use them before the next call.
    """

    def __init__(self, step: Step, plain_calls: int = 3) -> None:
        """`plain_calls`: eager steps before capture. They compile and load kernels and create the optimizer moments."""
        self._step, self._plain_calls = step, plain_calls
        self._inputs: dict[str, Tensor] = {}
        self._results: dict[str, Tensor] = {}
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def recorded(self) -> bool:
        return self._graph is not None

    def __call__(self, **inputs: Tensor) -> dict[str, Tensor]:
        if not self._inputs:
            self._inputs = {name: torch.empty_like(value) for name, value in inputs.items()}
        for name, value in inputs.items():
            self._inputs[name].copy_(value)
        if self._plain_calls == 0 and self._graph is None:
            self._record()
        if self._graph is None:
            self._plain_calls -= 1  # negative after a failed capture: do not try again
            return self._aside()
        self._graph.replay()
        return self._results

    def _aside(self) -> dict[str, Tensor]:
        """Runs on the stream that will be captured, so that per-stream resources exist by then."""
        here, aside = torch.cuda.current_stream(), _side_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            results = self._step(**self._inputs)
        here.wait_stream(aside)
        return results

    def _record(self) -> None:
        """Captures without computing; the first replay computes this call's step."""
        here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()  # destructors that run during capture may call the device
        try:
            with torch.cuda.graph(graph, stream=_side_stream(), capture_error_mode="thread_local"):
                self._results = self._step(**self._inputs)
        except Exception as error:
            first = error.__context__ or error  # ending a failed capture raises another error
            reason = str(first).partition("\n")[0]
            print(
                f"the step cannot be captured ({type(first).__name__}: {reason}); it runs without a graph", flush=True
            )
            torch.cuda.set_stream(here)
            self._results = {}
            _require_working_device(error)
        else:
            self._graph = graph
        finally:
            gc.enable()

    def release(self) -> None:
        """Call before another step is captured."""
        torch.cuda.synchronize()
        self._graph, self._results = None, {}


@cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _require_working_device(cause: Exception) -> None:
    """A failed capture may leave the allocator or the random generator in capture mode."""
    with suppress(Exception):
        torch.cuda.synchronize()  # clears the pending error
    try:
        torch.rand(8, device="cuda").sum().item()
    except Exception:
        raise RuntimeError("the device does not work after the failed capture; start again with --no-graph") from cause
