"""Computes a residual unit of the vocoder in one launch: two convolutions (conv.py), the second one with one tap.

inner = snake1(conv1(x));  y = conv2(inner) + residual;  out = snake2(y)

A program computes all channels of its columns, so `inner` never leaves it. Casting is that of two launches: sums are
fp32; conv1's sum with its bias, `inner`, y and out are rounded to bf16. So results equal theirs except for the order of
fp32 sums.

Programs need a width that is a power of two: 96 channels are computed as 64 and 32, 192 as 128 and 64. Wider units, and
those of few columns, take two launches: then more programs share their weights.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels import primitives
from oscine.kernels.conv import (
    Conv,
    Rows,
    Workspace,
    apply_snake,
    check_input,
    check_ring,
    conv,
    load_operands,
    store_outputs,
)
from oscine.kernels.conv_tiles import UnitTile, unit_tile
from oscine.kernels.primitives import dot, fitting_stages, place_columns, to_bf16


@triton.jit
def _inner(total, bias, rate, depth, first, width: tl.constexpr):
    """conv1's results, rounded where a launch of its own would round them."""
    n = first + tl.arange(0, width)
    rounded = to_bf16(total + tl.load(bias + n)[None, :])
    return to_bf16(apply_snake(rounded.to(tl.float32), tl.load(rate + n)[None, :], tl.load(depth + n)[None, :]))


@triton.jit(do_not_specialize=["size", "columns", "taps", "dilation"])
def _residual_unit(
    x, weight1, bias1, rate1, depth1, weight2, bias2, rate2, depth2, residual, raw, out, slots, positions,
    size, columns, taps, dilation, in_stride, in_places, out_stride, out_places,
    channels: tl.constexpr, block_m: tl.constexpr, block_k: tl.constexpr, block_n: tl.constexpr, width: tl.constexpr,
    extra: tl.constexpr, has_raw: tl.constexpr,
):  # fmt: skip
    """Program i: columns i * block_m .., all channels, as a part of `width` and one of `extra`."""
    m = tl.program_id(0) * block_m + tl.arange(0, block_m)
    live = m < size
    _, slot, column = place_columns(m, size, columns, slots, positions)
    oldest = (column - dilation * (taps - 1))[:, None]

    # conv1, in the order of a launch of its own
    k = tl.arange(0, block_k)
    columns_at = x + (slot * in_stride)[:, None] + k[None, :]
    total = tl.zeros((block_m, width), tl.float32)
    weight_at = weight1 + tl.arange(0, width)[:, None] * (taps * channels) + k[None, :]
    if extra:
        total2 = tl.zeros((block_m, extra), tl.float32)
        extra_at = weight1 + (width + tl.arange(0, extra))[:, None] * (taps * channels) + k[None, :]
    steps_per_tap: tl.constexpr = channels // block_k
    for step in range(taps * steps_per_tap):
        tap = step // steps_per_tap
        c = (step - tap * steps_per_tap) * block_k
        factors = tl.load(weight_at + (tap * channels + c))
        if extra:
            extra_factors = tl.load(extra_at + (tap * channels + c))
        tile = tl.load(columns_at + (((oldest + tap * dilation) & (in_places - 1)) * channels + c))
        total = dot(tile, factors, total)
        if extra:
            total2 = dot(tile, extra_factors, total2)

    # conv2, some outputs at a time: few registers for its weights and sums, while those for `inner` are in use
    inner = _inner(total, bias1, rate1, depth1, 0, width)
    n = tl.arange(0, block_n)
    second_at = weight2 + n[:, None] * channels + tl.arange(0, width)[None, :]
    if extra:
        inner2 = _inner(total2, bias1, rate1, depth1, width, extra)
        second2_at = weight2 + n[:, None] * channels + (width + tl.arange(0, extra))[None, :]
    for part in range(channels // block_n):
        first = part * block_n
        y = dot(inner, tl.load(second_at + first * channels), tl.zeros((block_m, block_n), tl.float32))
        if extra:
            y = dot(inner2, tl.load(second2_at + first * channels), y)
        added, more, rates, depths = load_operands(
            m, first, live, bias2, residual, rate2, depth2, channels, channels,
            block_n, "snake", True, True, False, True,
        )  # fmt: skip
        store_outputs(
            y, m, first, live, column, slot, added, more, rates, depths, raw, out,
            channels, channels, out_stride, out_places,
            block_n, "snake", True, True, has_raw, "ring", False, True,
        )  # fmt: skip


# --- wrappers ---


@dataclass(frozen=True, slots=True, eq=False)
class UnitLayers:
    """The two convolutions of a residual unit, each with the snake that follows it."""

    conv1: Conv
    conv2: Conv

    def __post_init__(self) -> None:
        first, second = self.conv1, self.conv2
        for layer in (first, second):
            assert layer.inputs == len(layer.weight) == self.channels, (layer.weight.shape, self.channels)
            assert layer.phases == 1 and layer.norm_eps is None, (layer.phases, layer.norm_eps)
        assert second.taps == 1 and first.columns == second.columns, (second.taps, first.columns, second.columns)

    @property
    def channels(self) -> int:
        return self.conv1.channels

    @property
    def parts(self) -> tuple[int, int]:
        """Splits the channels into the largest power of two and the rest."""
        width = 1 << self.channels.bit_length() - 1
        return width, self.channels - width

    def tile(self, rows: int) -> UnitTile | None:
        """Returns None if the unit takes two launches."""
        tile = unit_tile(self.channels, rows)
        if tile is None:
            return None
        limit = primitives.block_bytes(self.conv1.weight.device)
        step = max((tile.columns + self.channels) * tile.depth, tile.outputs * self.channels)
        loaded = step * self.conv1.weight.element_size()
        tile = tile._replace(stages=fitting_stages(tile.stages, loaded, limit))
        return tile if (tile.stages - 1) * loaded <= limit else None


def residual_unit(
    unit: UnitLayers,
    x: Tensor,
    rows: Rows,
    workspace: Workspace,
    *,
    residual: Tensor,
    inner: Tensor,
    out: Tensor,
    raw: Tensor | None = None,
) -> None:
    """x, out: rings [slots, places, channels]. residual, raw and inner: dense [columns of all rows, channels]. raw gets
    the sum before the last snake; it may be `residual`. `inner` is used by two launches only."""
    if tile := unit.tile(len(rows)):
        fused_unit(unit, tile, x, rows, residual=residual, raw=raw, out=out)
    else:
        conv(unit.conv1, x, rows, workspace, out=inner)
        conv(unit.conv2, inner, rows, workspace, residual=residual, raw=raw, out=out)


def fused_unit(
    unit: UnitLayers, tile: UnitTile, x: Tensor, rows: Rows, *, residual: Tensor, out: Tensor, raw: Tensor | None = None
) -> None:
    first, second, channels = unit.conv1, unit.conv2, unit.channels
    width, extra = unit.parts
    size = len(rows) * first.columns
    check_input(first, x, size)
    check_ring(out, first.columns, channels)
    assert x.ndim == 3 and out is not x, "programs read what other programs would overwrite"
    for dense in (residual, raw):
        assert dense is None or (dense.shape == (size, channels) and dense.is_contiguous()), (dense.shape, size)
    assert first.bias is not None and second.bias is not None, "a unit without bias needs two launches"
    assert first.snake and second.snake, (first.activation, second.activation)
    assert channels % tile.depth == 0 and channels % tile.outputs == 0, (channels, tile)
    assert extra == 0 or (extra >= 16 and extra & (extra - 1) == 0), channels
    _residual_unit[(triton.cdiv(size, tile.columns),)](
        x, first.weight, first.bias, *first.snake, second.weight, second.bias, *second.snake,
        residual, second.weight if raw is None else raw, out, rows.slot, rows.position,
        size, first.columns, first.taps, first.dilation, x.stride(0), x.shape[1], out.stride(0), out.shape[1],
        channels=channels, block_m=tile.columns, block_k=tile.depth, block_n=tile.outputs, width=width, extra=extra,
        has_raw=raw is not None, num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers or None,
    )  # fmt: skip
