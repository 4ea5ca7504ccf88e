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

from oscine.model.int8 import (
    LARGEST,
    PACKED_ZERO,
    TINY,
    Int8Linear,
    has_integer_products,
    int8_product,
    packed_product,
)

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
            self._buffers[key][:2].zero_()  # products of one row read the second, and subnormal numbers are slow
        return self._buffers[key][:rows].view(rows, *shape)

    def share(self, name: str, rows: int, *shape: int) -> SharedBuffer:
        tensor = self.take(name, rows, *shape)
        return SharedBuffer(tensor, tensor.numpy())


class RecordedProduct(Protocol):
    def record(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> None:
        """Records out = x @ weight.T, for x [rows, inputs] in fp32."""

    def record_add(self, step: RecordedStep, pool: BufferPool, x: Callable[[], Tensor], out: Tensor) -> None:
        """Records out += x() @ weight.T."""


class Fp32Product:
    """A product in MKL. With `same_bits` a row alone is summed in the order of a row among others: the next row of its
    buffers, whatever that holds, is computed too."""

    def __init__(self, weight: Tensor, *, same_bits: bool = True) -> None:
        self._weight, self._same_bits = by_columns(weight).T, same_bits

    def record(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> None:
        if self._same_bits and len(x) == 1:
            x, out = two_rows(x), two_rows(out)
        step.add(torch.mm, x, self._weight, out=out)

    def record_add(self, step: RecordedStep, pool: BufferPool, x: Callable[[], Tensor], out: Tensor) -> None:
        weight = self._weight
        if not (self._same_bits and len(out) == 1):
            step.add(lambda: out.addmm_(x(), weight))
            return
        source = pool.take("source", 1, len(weight))
        step.add(lambda: source.copy_(x()))
        step.add(two_rows(out).addmm_, two_rows(source), weight)


def two_rows(row: Tensor) -> Tensor:
    """Returns a row of a pool's buffer [1, n] with the row after it, [2, n]."""
    return row.as_strided((2, row.shape[1]), (row.shape[1], 1))


class SameBitsLinear(nn.Linear):
    """A layer that computes a row alone with the bits of a row among others: it computes that row twice."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if len(x) > 1 else super().forward(torch.cat((x, x)))[:1]


def by_columns(weight: Tensor) -> Tensor:
    """Returns the same matrices [..., outputs, inputs], stored by columns. Then `x @ weight.T` sums a row of x in the
    same order for any number of rows from two on, and needs no packing. (MKL has other kernels for a single row, and
    for few rows with a matrix stored by rows.)"""
    return weight.mT.contiguous().mT


class Int8Product:
    """The calls of Int8Linear on fixed buffers."""

    def __init__(self, linear: Int8Linear) -> None:
        self._linear = linear

    def record(self, step: RecordedStep, pool: BufferPool, x: Tensor, out: Tensor) -> None:
        product, row_scale = self._record_rounding(step, pool, x)
        step.add(lambda: torch.mul(product(), row_scale, out=out))

    def record_add(self, step: RecordedStep, pool: BufferPool, x: Callable[[], Tensor], out: Tensor) -> None:
        source = pool.take("source", len(out), self._linear.values.shape[1])
        step.add(lambda: source.copy_(x()))
        product, row_scale = self._record_rounding(step, pool, source)
        step.add(lambda: torch.addcmul(out, product(), row_scale, out=out))

    def _record_rounding(self, step: RecordedStep, pool: BufferPool, x: Tensor) -> tuple[Callable[[], Tensor], Tensor]:
        """Returns what computes x @ weight.T but for the scales of x's rows, and those, [rows, 1]."""
        rows, inputs = x.shape
        packed = self._linear.packed() if rows > 1 else None
        wide = pool.share("wide", rows, inputs)
        rounded = torch.empty(rows, inputs, dtype=torch.int8 if packed is None else torch.uint8)
        row_scale: Floats = np.empty((rows, 1), np.float32)
        largest, tiny = np.float32(LARGEST), np.float32(TINY)
        step.add(np.abs, x.numpy(), out=wide.array)
        step.add(np.maximum.reduce, wide.array, axis=1, out=row_scale, keepdims=True)  # np.max takes twice as long
        step.add(np.maximum, row_scale, tiny, out=row_scale)
        step.add(np.divide, row_scale, largest, out=row_scale)
        step.add(np.divide, x.numpy(), row_scale, out=wide.array)
        step.add(np.rint, wide.array, out=wide.array)
        if packed is not None:
            step.add(np.add, wide.array, np.float32(PACKED_ZERO), out=wide.array)
        step.add(rounded.copy_, wide.tensor)
        return self._product(pool, rounded, packed), torch.from_numpy(row_scale)

    def _product(self, pool: BufferPool, rounded: Tensor, packed: Tensor | None) -> Callable[[], Tensor]:
        rows, values, scale = len(rounded), self._linear.values, self._linear.scale
        if packed is not None:
            return packed_product(rounded, packed, scale)
        if not has_integer_products():
            return lambda: int8_product(rounded, values).mul_(scale)
        # A result that `_int_mm` makes itself takes 0.1 ms more.
        by_inputs, sums = values.T, pool.take("sums", rows, len(values)).view(torch.int32)
        scaled = pool.take("scaled", rows, len(values))
        return lambda: torch.mul(torch._int_mm(rounded, by_inputs, out=sums), scale, out=scaled)


def product_of(linear: nn.Module, scale: Tensor | None = None, *, same_bits: bool = True) -> RecordedProduct:
    """Returns the product of a layer without a bias. `scale` of the outputs is folded into the weight, which changes
    the last bits."""
    if isinstance(linear, Int8Linear):
        assert scale is None and linear.bias is None
        return Int8Product(linear)
    assert isinstance(linear, nn.Linear) and linear.bias is None, type(linear)
    weight = linear.weight if scale is None else linear.weight * scale[:, None]
    return Fp32Product(weight, same_bits=same_bits)
