"""A training step as one CUDA graph: recorded once, then replayed as a whole. A step of the codec is three thousand
small kernels; launched one by one from Python they take twice as long as the GPU needs to run them.
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
    """Calls `step(**inputs)`: the first few times as it is, then recorded, then from the record. Each call is one step.

    What a step must be for that:
    - what changes from call to call comes in through `inputs`, tensors of fixed shapes, or lies on the device and is
      changed in place: weights, moments, learning rates, codebooks. A Python number is read once, at recording;
    - nothing is asked of the device: no item(), no `if tensor`, no shape that hangs on values, no copy to or from here;
    - random numbers come from the device's own generator, which goes on counting over replays;
    - gradients are set to None before each backward, so that the recorded ones lie in the graph's own memory;
    - results are detached. One that held on to its autograd graph would bind the next backward to the stream of the
      last, and a recording must not leave its stream.

    The results of a replay are the same tensors each time: use them before the next call.
    """

    def __init__(self, step: Step, plain_calls: int = 3) -> None:
        """`plain_calls`: until then every kernel is compiled, chosen and loaded, and the optimizers have their moments.
        These are steps like any other."""
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
            self._plain_calls -= 1  # below zero after a failure: never again
            return self._aside()
        self._graph.replay()
        return self._results

    def _aside(self) -> dict[str, Tensor]:
        """On the stream that will be recorded: what a stream needs of its own is there by then."""
        here, aside = torch.cuda.current_stream(), _side_stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            results = self._step(**self._inputs)
        here.wait_stream(aside)
        return results

    def _record(self) -> None:
        """Nothing is computed here; the first replay is this call's step."""
        here, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()  # whatever is taken apart while a stream is recorded may speak to the device
        try:
            with torch.cuda.graph(graph, stream=_side_stream(), capture_error_mode="thread_local"):
                self._results = self._step(**self._inputs)
        except Exception as error:
            first = error.__context__ or error  # ending a recording that broke is an error of its own
            reason = str(first).partition("\n")[0]
            print(f"the step cannot be recorded ({type(first).__name__}: {reason}); it runs as it is", flush=True)
            torch.cuda.set_stream(here)
            self._results = {}
            _require_working_device(error)
        else:
            self._graph = graph
        finally:
            gc.enable()

    def release(self) -> None:
        """Before another step is recorded, with other kernels."""
        torch.cuda.synchronize()
        self._graph, self._results = None, {}


@cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def _require_working_device(cause: Exception) -> None:
    """A recording that broke off may have left the allocator or the random numbers in its middle."""
    with suppress(Exception):
        torch.cuda.synchronize()  # takes the error that is pending
    try:
        torch.rand(8, device="cuda").sum().item()
    except Exception:
        raise RuntimeError("nothing works on the device after that; start again with --no-graph") from cause
