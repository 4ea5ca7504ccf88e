"""RMSNorm, split in two: whoever writes a row also writes its sums of squares, whoever reads it normalizes.

    y = bf16(bf16(x * rsqrt(sum(x^2) / width + eps)) * weight)        the inner part in fp32, x and weight bf16

A row's squares are kept as one fp32 sum per STAT_COLUMNS columns. The sums run in fp64, where the squares of bf16
values are exact: so they do not depend on the order, hence neither on tile shapes nor on the size of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.shared import rounded, to_bf16

STAT_COLUMNS = 32
_STAT_COLUMNS = tl.constexpr(STAT_COLUMNS)


@dataclass(frozen=True, slots=True)
class RowStats:
    """Sums of squares of some rows, as the kernels hand them on."""

    squares: Tensor  # [rows, parts] fp32; part p sums columns 32 p .. 32 p + 31

    @staticmethod
    def empty(rows: int, width: int, device: torch.device) -> RowStats:
        return RowStats(torch.zeros(rows, -(-width // STAT_COLUMNS), device=device))

    def rows(self, which: slice) -> RowStats:
        return RowStats(self.squares[which])

    def check(self, rows: int, width: int) -> None:
        parts = -(-width // STAT_COLUMNS)
        assert self.squares.dtype == torch.float32, self.squares.dtype
        assert self.squares.shape[0] >= rows and self.squares.shape[1] == parts, (self.squares.shape, rows, parts)
        assert self.squares.stride(1) == 1, self.squares.stride()


@dataclass(frozen=True, slots=True)
class Norm:
    """What a kernel needs to normalize its input rows."""

    weight: Tensor  # [width]
    eps: float
    stats: RowStats  # of these rows

    def check(self, rows: int, width: int) -> None:
        assert self.weight.shape == (width,) and self.weight.dtype == torch.bfloat16, (self.weight.shape, width)
        self.stats.check(rows, width)


@triton.jit
def inverse_rms(squares, stride, row, is_row, width, parts, eps, block_parts: tl.constexpr):
    """[rows] of 1 / rms."""
    part = tl.arange(0, block_parts)
    mask = is_row[:, None] & (part < parts)[None, :]
    sums = tl.load(squares + row[:, None] * stride + part[None, :], mask=mask, other=0.0)
    total = tl.sum(sums.to(tl.float64), 1).to(tl.float32)
    return tl.rsqrt(tl.div_rn(total, width.to(tl.float32)) + eps)


@triton.jit
def normalized(x, inverse, weight):
    """x and weight bf16, inverse fp32 -> bf16."""
    return to_bf16(rounded(x.to(tl.float32) * inverse) * weight.to(tl.float32))


@triton.jit
def store_squares(squares, stride, row, mask, part, values):
    """values [rows, parts, STAT_COLUMNS], zero past the last column; row [rows], part [parts], mask [rows, parts]."""
    wide = values.to(tl.float64)
    sums = tl.sum(wide * wide, 2).to(tl.float32)
    tl.store(squares + row[:, None] * stride + part[None, :], sums, mask=mask)


@triton.jit
def store_row_squares(squares, part, parts, values):
    """The same for one row: `squares` points at it, values [parts, STAT_COLUMNS]."""
    wide = values.to(tl.float64)
    tl.store(squares + part, tl.sum(wide * wide, 1).to(tl.float32), mask=part < parts)


@triton.jit
def _rms_norm(
    x, weight, squares, out, width, parts, x_stride, out_stride, squares_stride, eps, block_parts: tl.constexpr
):
    row = tl.program_id(0) + tl.arange(0, 1)
    inverse = inverse_rms(squares, squares_stride, row, row >= 0, width, parts, eps, block_parts)
    column = tl.arange(0, block_parts * _STAT_COLUMNS)[None, :]
    is_column = column < width
    values = tl.load(x + row[:, None] * x_stride + column, mask=is_column, other=0.0)
    scale = tl.load(weight + column, mask=is_column, other=0.0)
    tl.store(out + row[:, None] * out_stride + column, normalized(values, inverse[:, None], scale), mask=is_column)


@triton.jit
def _row_stats(x, squares, width, parts, x_stride, squares_stride, block_parts: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, block_parts)
    column = part[:, None] * _STAT_COLUMNS + tl.arange(0, _STAT_COLUMNS)[None, :]
    values = tl.load(x + row * x_stride + column, mask=column < width, other=0.0).to(tl.float32)
    store_row_squares(squares + row * squares_stride, part, parts, values)


def rms_norm(x: Tensor, norm: Norm, out: Tensor) -> None:
    """x [rows, width] -> out, rounded as above: where the normalized row itself is wanted, or for many rows, where
    one pass is cheaper than normalizing in every program of a matrix product."""
    rows, width = _check_rows(x)
    assert out.shape == x.shape and out.dtype == x.dtype and out.stride(1) == 1, (out.shape, x.shape)
    norm.check(rows, width)
    squares = norm.stats.squares
    parts = squares.shape[1]
    _rms_norm[(rows,)](
        x, norm.weight, squares, out, width, parts, x.stride(0), out.stride(0), squares.stride(0), norm.eps,
        block_parts=triton.next_power_of_2(parts),
    )  # fmt: skip


def row_stats(x: Tensor, stats: RowStats) -> None:
    """For rows that no kernel of ours has written."""
    rows, width = _check_rows(x)
    stats.check(rows, width)
    parts = stats.squares.shape[1]
    _row_stats[(rows,)](
        x, stats.squares, width, parts, x.stride(0), stats.squares.stride(0), block_parts=triton.next_power_of_2(parts)
    )


def _check_rows(x: Tensor) -> tuple[int, int]:
    assert x.ndim == 2 and x.dtype == torch.bfloat16 and x.stride(1) == 1, (x.shape, x.dtype, x.stride())
    return x.shape[0], x.shape[1]
