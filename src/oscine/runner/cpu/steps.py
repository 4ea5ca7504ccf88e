"""Recorded steps, the buffers that they share, and their products: x @ weight.T of a fp32 or an int8 matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from oscine.model.int8 import LARGEST, TINY, Int8Linear, int8_product

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


class Product(Protocol):
    def record(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> None:
        """Records out = x @ weight.T, for x [rows, inputs] in fp32."""

    def record_add(self, step: RecordedStep, pool: BufferPool, x: Callable[[], Tensor], out: Tensor) -> None:
        """Records out += x() @ weight.T."""


class Fp32Product:
    def __init__(self, weight: Tensor) -> None:
        self._weight = by_columns(weight).T

    def record(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> None:
        step.add(torch.mm, x, self._weight, out=out)

    def record_add(self, step: RecordedStep, pool: BufferPool, x: Callable[[], Tensor], out: Tensor) -> None:
        weight = self._weight
        step.add(lambda: out.addmm_(x(), weight))


def by_columns(weight: Tensor) -> Tensor:
    """Returns the same matrices [..., outputs, inputs], stored by columns. Then `x @ weight.T` sums a row of x in the
    same order for any number of rows from two on, and needs no packing. (MKL has other kernels for a single row, and
    for few rows with a matrix stored by rows.)"""
    return weight.mT.contiguous().mT


class Int8Product:
    """The calls of Int8Linear on fixed buffers."""

    def __init__(self, linear: Int8Linear) -> None:
        self._values, self._scale = linear.values, linear.scale

    def record(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> None:
        row_scale = self._record_sums(step, pool, x, out)
        step.add(torch.mul, out, row_scale, out=out)

    def record_add(self, step: RecordedStep, pool: BufferPool, x: Callable[[], Tensor], out: Tensor) -> None:
        rows, (outputs, inputs) = len(out), self._values.shape
        source, product = pool.take("source", rows, inputs), pool.take("product", rows, outputs)
        step.add(lambda: source.copy_(x()))
        row_scale = self._record_sums(step, pool, source, product)
        step.add(torch.addcmul, out, product, row_scale, out=out)

    def _record_sums(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> Tensor:
        """Records out = x @ weight.T but for the rows' scales [rows, 1], which it returns."""
        rows, inputs = x.shape
        wide, rounded = pool.share("wide", rows, inputs), torch.empty(rows, inputs, dtype=torch.int8)
        row_scale: Floats = np.empty((rows, 1), np.float32)
        largest, tiny = np.float32(LARGEST), np.float32(TINY)
        step.add(np.abs, x.numpy(), out=wide.array)
        step.add(np.maximum.reduce, wide.array, axis=1, out=row_scale, keepdims=True)  # np.max takes twice as long
        step.add(np.maximum, row_scale, tiny, out=row_scale)
        step.add(np.divide, row_scale, largest, out=row_scale)
        step.add(np.divide, x.numpy(), row_scale, out=wide.array)
        step.add(np.rint, wide.array, out=wide.array)
        step.add(rounded.copy_, wide.tensor)
        values, scale = self._values, self._scale
        step.add(lambda: torch.mul(int8_product(rounded, values), scale, out=out))
        return torch.from_numpy(row_scale)


def product_of(linear: nn.Module, scale: Tensor | None = None) -> Product:
    """Returns the product of a layer without a bias. `scale` of the outputs is folded into the weight, which changes
    the last bits."""
    if isinstance(linear, Int8Linear):
        assert scale is None and linear.bias is None
        return Int8Product(linear)
    assert isinstance(linear, nn.Linear) and linear.bias is None, type(linear)
    return Fp32Product(linear.weight if scale is None else linear.weight * scale[:, None])
