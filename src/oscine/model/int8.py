"""Matrices of 8-bit integers for CPUs: a scale per output of the weight, and a scale per row of the input, found anew
for each row.

Products of integers are summed as integers, so a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

LARGEST = 127
TINY = torch.finfo(torch.float32).tiny  # the scale of a row of zeros must not be zero
_VALUES_AT_ONCE = 2**14  # of a weight that is quantized: they stay in the cache, and torch leaves them to one thread


class Int8Linear(nn.Module):
    """Computes x @ weight.T + bias in fp32, from x in any dtype."""

    values: Tensor  # [outputs, inputs] int8
    scale: Tensor  # [outputs]
    bias: Tensor | None

    def __init__(self, values: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        for name, tensor in (("values", values), ("scale", scale), ("bias", bias)):
            self.register_buffer(name, tensor, persistent=False)
        self._packed: Tensor | None = None

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None = None) -> Int8Linear:
        return Int8Linear(*quantized(weight), bias)

    def packed(self) -> Tensor | None:
        """Returns a copy of the values for `packed_product`, made by the first call, or None where they are not
        faster."""
        if self._packed is None and self.values.numel() >= _MIN_PACKED and has_packed_products():
            self._packed = torch.ops.onednn.qlinear_prepack(self.values, None)
        return self._packed

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2).float()
        row_scale = rows.abs().amax(1, keepdim=True).clamp_min_(TINY) / LARGEST
        out = int8_product((rows / row_scale).round_().to(torch.int8), self.values) * self.scale * row_scale
        if self.bias is not None:
            out += self.bias
        return out.view(*x.shape[:-1], -1)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a matrix as int8, and the scale of each of its rows."""
    values, scale = torch.empty(weight.shape, dtype=torch.int8), torch.empty(len(weight))
    rows_at_once = max(1, _VALUES_AT_ONCE // weight.shape[1])
    parts = (tensor.split(rows_at_once) for tensor in (weight, values, scale))
    for rows, rounded, row_scale in zip(*parts, strict=True):
        wide = rows.float()
        torch.div(wide.abs().amax(1).clamp_min_(TINY), LARGEST, out=row_scale)  # vector_norm takes six times as long
        # torch's round starts its threads even for so few values, which took 30 times as long on a busy machine.
        wide = wide / row_scale[:, None]
        rounded.copy_(torch.from_numpy(np.rint(wide.numpy())))
    return values, scale


def int8_product(x: Tensor, values: Tensor) -> Tensor:
    """Computes x [rows, inputs] @ values.T of int8. The sums are int32 and exact where `has_integer_products`, else
    fp32, rounded to bf16."""
    if has_integer_products():
        return torch._int_mm(x, values.T)
    ones = torch.ones(len(values), dtype=torch.bfloat16)
    return torch._weight_int8pack_mm(x.bfloat16(), values, ones).float()


@functools.cache
def has_integer_products() -> bool:
    """Whether `_int_mm` is fast and exact here: on x86 processors with VNNI or AMX. Older ones add pairs of products in
    16 bits, which overflow; for others it is a plain loop."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    row = torch.full((1, 64), LARGEST, dtype=torch.int8)
    return int(torch._int_mm(row, row.T)) == 64 * LARGEST**2


# --- Products of packed values, for the recorded steps of several rows: `_int_mm` would rearrange the values in every
# call with more than one row. On a core with VNNI four rows take two thirds of its time, and one row a quarter more.

_MIN_PACKED = 2**20  # values: a call takes 0.05 ms more than `_int_mm`
PACKED_ZERO = 128  # inputs are uint8 there, with this added


def bytes_per_value(values: int) -> int:
    """Returns the memory of a matrix of so many values, divided by them: with its packed copy."""
    return 2 if values >= _MIN_PACKED and has_packed_products() else 1


def packed_product(x: Tensor, packed: Tensor, scale: Tensor) -> Callable[[], Tensor]:
    """Returns what computes ((x - 128) @ values.T) * scale, for x [rows, inputs] in uint8. Its sums are exact too."""
    product = torch.ops.onednn.qlinear_pointwise.default
    zeros = torch.zeros(len(scale), dtype=torch.int64)
    return partial(product, x, 1.0, PACKED_ZERO, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], "")


@functools.cache
def has_packed_products() -> bool:
    """Whether packed values are exact and faster here: with VNNI. With AMX `_int_mm` is as fast and needs no copy."""
    if not has_integer_products() or torch.cpu._is_amx_tile_supported():
        return False
    values = torch.full((16, 64), LARGEST, dtype=torch.int8)
    x, scale = torch.full((2, 64), PACKED_ZERO + LARGEST, dtype=torch.uint8), torch.ones(16)
    try:
        product = packed_product(x, torch.ops.onednn.qlinear_prepack(values, None), scale)()
    except (RuntimeError, AttributeError):
        return False
    return bool((product == 64 * LARGEST**2).all())
