"""Recorded steps and the buffers that they share."""

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
    """A fixed sequence of calls on fixed buffers: the CPU's counterpart of a captured CUDA graph.

    A small model on a CPU spends its time in calls, not in arithmetic. So its code runs once per number of rows to
    record the calls with their arguments; a frame replays them without lookups, views or allocations.
    """

    def __init__(self) -> None:
        self._calls: list[Callable[[], object]] = []

    def add(self, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        self._calls.append(partial(function, *args, **kwargs))

    def replay(self) -> None:
        for call in self._calls:
            call()


class SharedBuffer(NamedTuple):
    """The same memory as a tensor and as an array: PyTorch is faster at large operations, NumPy at small ones."""

    tensor: Tensor
    array: Floats


class BufferPool:
    """fp32 buffers shared by the recorded steps for up to `max_rows` rows: only one of them runs at a time."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._buffers: dict[tuple[str, int], Tensor] = {}

    def take(self, name: str, rows: int, *shape: int) -> Tensor:
        """Returns uninitialized memory [rows, *shape], the same for the same name and row size."""
        assert rows <= self._max_rows, (rows, self._max_rows)
        key = (name, math.prod(shape))
        if key not in self._buffers:
            # Not zeros: memory that no step touches costs nothing.
            self._buffers[key] = torch.empty(self._max_rows, key[1])
        return self._buffers[key][:rows].view(rows, *shape)

    def share(self, name: str, rows: int, *shape: int) -> SharedBuffer:
        tensor = self.take(name, rows, *shape)
        return SharedBuffer(tensor, tensor.numpy())
