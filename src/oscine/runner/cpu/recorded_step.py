"""A fixed sequence of calls into fixed memory: for a CPU what a captured graph is for a GPU.

A small model on a CPU spends its time in calls, not in arithmetic. So its code is walked through once for every number
of rows, the calls are kept with their arguments, and a frame plays them: nothing is looked up, viewed or allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class RecordedStep:
    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def add(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        self._calls.append(partial(function, *args, **kwargs))

    def play(self) -> None:
        for call in self._calls:
            call()


class Shared(NamedTuple):
    """One piece of memory for both libraries: large work is PyTorch's, but a small call of NumPy costs a third."""

    tensor: Tensor
    array: Floats


class Arena:
    """fp32 memory that tapes for up to `max_rows` rows have in common: only one of them plays at a time."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, name: str, rows: int, *shape: int) -> Tensor:
        """[rows, *shape], with whatever stands there: the same memory for the same name and size of a row."""
        assert rows <= self._max_rows, (rows, self._max_rows)
        key = (name, math.prod(shape))
        if key not in self._buffers:
            # Not zeros: pages that no tape has touched cost nothing.
            self._buffers[key] = torch.empty(self._max_rows, key[1])
        return self._buffers[key][:rows].view(rows, *shape)

    def share(self, name: str, rows: int, *shape: int) -> Shared:
        tensor = self.take(name, rows, *shape)
        return Shared(tensor, tensor.numpy())
