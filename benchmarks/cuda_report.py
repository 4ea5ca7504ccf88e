"""Figures of the CUDA kernels that survive a kernel's failure: each check is caught, timed and written at once."""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Figures = dict[str, Any]
_ULP = 2.0**-7  # the largest relative distance of two adjacent bf16 numbers
_REPLAYS = 9


class Report:
    def __init__(self, path: Path, limit_s: float) -> None:
        self._path = path
        self._deadline = time.monotonic() + limit_s
        self.figures: Figures = {"failures": {}, "skipped": []}

    @contextmanager
    def check(self, name: str) -> Iterator[Figures]:
        """A check writes its figures into the dictionary that it gets. An exception is a figure too."""
        figures: Figures = {}
        if time.monotonic() > self._deadline:
            self.figures["skipped"].append(name)
            raise OutOfTimeError(name)
        begun = time.monotonic()
        try:
            yield figures
            torch.cuda.synchronize()
            wrong = [key for key, value in figures.items() if key.startswith("ok") and not value]
            if wrong:
                self.figures["failures"][name] = f"{', '.join(wrong)} of {figures}"
        except Exception as error:  # a kernel may fail in any way; the others are still measured
            figures["error"] = f"{type(error).__name__}: {error}"
            self.figures["failures"][name] = figures["error"]
            traceback.print_exc(file=sys.stdout)
        self.figures[name] = figures
        shown = {key: round(value, 5) if isinstance(value, float) else value for key, value in figures.items()}
        print(f"{name} [{time.monotonic() - begun:.1f} s]: {shown}", flush=True)
        self.save()

    def save(self) -> None:
        self._path.write_text(json.dumps(self.figures, indent=1))


class OutOfTimeError(Exception):
    """The section's time is over; the remaining checks are skipped."""


def differences(actual: Tensor, expected: Tensor, flips: float) -> Figures:
    """How far bf16 results are from a reference whose sums ran in another order. A missing or misplaced rounding
    changes a tenth of all elements or more; `ok` allows the share `flips`, each by one unit of the largest value."""
    a, b = actual.float(), expected.float()
    differ = (actual != expected).float().mean().item()
    error, bound = (a - b).abs().max().item(), _ULP * b.abs().max().item()
    finite = bool(a.isfinite().all())
    relative = ((a - b).norm() / b.norm()).item()
    return {
        "ok": finite and error <= bound and differ <= flips,
        "flips": differ,
        "error": error,
        "bound": bound,
        "relative": relative,
        "finite": finite,
    }


def graph_us(call: Callable[[], object], copies: int = 1) -> float:
    """Microseconds of one call: the median over replays of a CUDA graph that holds `copies` of them."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    graph.replay()
    times = []
    for _ in range(_REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times) * 1e3 / copies
