"""Matrix product, fused with the operations that follow it in a layer.

    y = bf16(x @ weight.T + bias)                                      fp32 sums, one rounding with the bias
    glu:       y = bf16(bf16(silu(gate)) * up), gate and up rounded to bf16 first; weight holds gate rows, then up rows
    residual:  y = bf16(residual + y)

The roundings equal those of the plain PyTorch modules in bf16; only the order of the fp32 sums differs.

Results are reproducible bit by bit: split-K partial sums are added in a fixed order. A row's bits depend neither on the
other rows' values nor on their number: a shape has one split for any number of rows, and the tensor core instructions
for few and for many rows add alike (tests/kernels/test_linear.py tests both). For many rows one program runs over all
of K and starts new sums where the split would (`serial`): the same additions in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels import primitives
from oscine.kernels.primitives import dot, fitting_stages, rounded, to_bf16

_MAX_ROWS = 128  # per program
_PARTIAL_SUMS = 24576  # of one row, at most: splits times weight rows of a published shape


@dataclass(frozen=True, slots=True)
class Plan:
    """How a product is divided into programs."""

    block_n: int  # outputs per program
    block_k: int  # K columns per step
    split: int  # programs that share one K
    warps: int
    stages: int
    serial: bool = False  # one program adds up the parts of K, in the order and with the sums of `split` programs


# Tiles that read little per product, for packs of prompt rows. Chosen by counting bytes, not measured.
_WIDE_ROWS = 256
_WIDE = Plan(128, 64, 1, 8, 3, serial=True)
_WIDE_GLU = Plan(64, 64, 1, 8, 3, serial=True)
_OTHER_SHAPES = Plan(32, 64, 1, 4, 3)


def _plans(split: int, *rows: tuple[int, int, int, int]) -> tuple[Plan, ...]:
    return tuple(Plan(block_n, block_k, split, warps, stages) for block_n, block_k, warps, stages in rows)


# (outputs, inputs, glu) -> split, then (block_n, block_k, warps, stages) for up to 16, 32, 64 and 128 rows. Measured on
# an H200 with a layer's products in sequence: the split is the best for few rows, the rest the best of a small grid.
# For 64 and 128 rows that grid used the best split there (1, 2 or 4). With the split below, a frame of 64 rows takes
# 11 % longer and one of 128 rows 22 % (1.7B, commit 6bfdb9a, which can do both: `one_split`); the rest was not tuned
# again. 0.6B's head (3072, 1024) uses the predictor head's plans, unmeasured.
_MEASURED: dict[tuple[int, int, bool], tuple[Plan, ...]] = {
    # Layers of width 1024: the predictor, and the talker of 0.6B.
    (4096, 1024, False): _plans(4, (32, 256, 4, 3), (32, 128, 4, 4), (64, 64, 4, 4), (32, 128, 4, 3)),
    (1024, 2048, False): _plans(4, (64, 128, 4, 3), (32, 128, 4, 4), (32, 64, 4, 4), (32, 128, 4, 3)),
    (3072, 1024, True): _plans(4, (32, 128, 4, 4), (32, 128, 4, 4), (64, 64, 4, 4), (32, 128, 4, 3)),
    (1024, 3072, False): _plans(4, (64, 128, 4, 3), (32, 128, 4, 4), (32, 128, 4, 3), (32, 128, 4, 3)),
    # Heads of the predictor and of 0.6B's talker.
    (2048, 1024, False): _plans(1, (32, 128, 4, 4), (32, 256, 4, 3), (32, 64, 4, 4), (32, 64, 4, 4)),
    (3072, 1024, False): _plans(1, (32, 128, 4, 4), (32, 256, 4, 3), (32, 64, 4, 4), (32, 64, 4, 4)),
    # The talker of 1.7B: width 2048.
    (4096, 2048, False): _plans(4, (32, 256, 4, 3), (32, 128, 4, 4), (32, 128, 4, 3), (64, 128, 8, 3)),
    (2048, 2048, False): _plans(4, (32, 256, 4, 3), (32, 256, 4, 3), (32, 128, 4, 3), (32, 128, 4, 3)),
    (6144, 2048, True): _plans(2, (32, 128, 4, 4), (32, 128, 4, 4), (32, 128, 4, 3), (32, 64, 4, 4)),
    (2048, 6144, False): _plans(4, (32, 256, 4, 3), (32, 256, 4, 3), (32, 128, 4, 3), (64, 128, 8, 3)),
    (3072, 2048, False): _plans(4, (32, 256, 4, 3), (32, 256, 4, 3), (32, 128, 4, 3), (32, 128, 4, 3)),
}


def choose_plan(outputs: int, inputs: int, glu: bool, rows: int) -> Plan:
    plans = _MEASURED.get((outputs, inputs, glu))
    if plans is None:
        return _OTHER_SHAPES
    if rows > _WIDE_ROWS:
        return replace(_WIDE_GLU if glu else _WIDE, split=plans[0].split)
    return plans[0 if rows <= 16 else 1 if rows <= 32 else 2 if rows <= 64 else 3]


@dataclass(frozen=True, slots=True)
class SplitKScratch:
    """Partial sums of programs that share one K. Products that run one after the other may share them."""

    partial: Tensor  # fp32
    arrivals: Tensor  # int32, zero between products: the last program of each tile resets it

    @staticmethod
    def empty(device: torch.device, *, rows: int = _MAX_ROWS, tiles: int = 4096) -> SplitKScratch:
        """Allocates for products of up to `rows` rows of every published shape."""
        floats = triton.cdiv(rows, _MAX_ROWS) * _MAX_ROWS * _PARTIAL_SUMS
        return SplitKScratch(torch.empty(floats, device=device), torch.zeros(tiles, dtype=torch.int32, device=device))


@triton.jit
def _finish(
    total, total_up, out, residual, bias, row, is_row, first, n, out_stride, residual_stride,
    block_n: tl.constexpr, glu: tl.constexpr, has_residual: tl.constexpr, has_bias: tl.constexpr, even_n: tl.constexpr,
):  # fmt: skip
    column = first + tl.arange(0, block_n)
    mask = is_row[:, None]
    if not even_n:
        mask = mask & (column < n)[None, :]
    if has_bias:
        total += tl.load(bias + column, mask=column < n, other=0.0).to(tl.float32)[None, :]
    y = rounded(total)
    if glu:
        y = rounded(rounded(y / (1.0 + tl.exp(-y))) * rounded(total_up))
    if has_residual:
        before = tl.load(residual + row[:, None] * residual_stride + column[None, :], mask=mask, other=0.0)
        y = rounded(before.to(tl.float32) + y)
    tl.store(out + row[:, None] * out_stride + column[None, :], to_bf16(y), mask=mask)


@triton.jit
def _part(
    x, weight, row, is_row, output, begin, span, n, k, x_stride,
    block_rows: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, glu: tl.constexpr,
    even_n: tl.constexpr, even_k: tl.constexpr,
):  # fmt: skip
    """The sums over K columns begin .. begin + span - 1: outputs, or gates and ups."""
    total = tl.zeros((block_rows, block_n), tl.float32)
    total_up = total
    for step in range(0, span, block_k):
        column = begin + step + tl.arange(0, block_k)
        x_mask = is_row[:, None]
        if not even_k:
            x_mask = x_mask & (column < k)[None, :]
        tile = tl.load(x + row[:, None] * x_stride + column[None, :], mask=x_mask, other=0.0)
        at = weight + output[:, None] * k + column[None, :]
        # Full shapes load without masks: masked weights cannot be prefetched in one piece.
        if even_n and even_k:
            total = dot(tile, tl.load(at), total)
            if glu:
                total_up = dot(tile, tl.load(at + n * k), total_up)
        else:
            mask = (output < n)[:, None] & (column < k)[None, :]
            total = dot(tile, tl.load(at, mask=mask, other=0.0), total)
            if glu:
                total_up = dot(tile, tl.load(at + n * k, mask=mask, other=0.0), total_up)
    return total, total_up


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x, weight, out, residual, bias, partial, arrivals,
    rows, n, k, span, x_stride, out_stride, residual_stride,
    block_rows: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, split: tl.constexpr, glu: tl.constexpr,
    has_residual: tl.constexpr, has_bias: tl.constexpr, even_n: tl.constexpr, even_k: tl.constexpr,
    serial: tl.constexpr,
):  # fmt: skip
    """Program (i, s, r): outputs i * block_n .., K columns s * span .. (all if serial), rows r * block_rows .."""
    first = tl.program_id(0) * block_n
    output = first + tl.arange(0, block_n)
    row = tl.program_id(2) * block_rows + tl.arange(0, block_rows)
    is_row = row < rows

    total, total_up = _part(
        x, weight, row, is_row, output, tl.program_id(1) * span, span, n, k, x_stride,
        block_rows, block_n, block_k, glu, even_n, even_k,
    )  # fmt: skip
    if serial:
        for part in range(1, split):
            more, more_up = _part(
                x, weight, row, is_row, output, part * span, span, n, k, x_stride,
                block_rows, block_n, block_k, glu, even_n, even_k,
            )  # fmt: skip
            total += more
            if glu:
                total_up += more_up

    if split == 1 or serial:
        _finish(
            total, total_up, out, residual, bias, row, is_row, first, n, out_stride, residual_stride,
            block_n, glu, has_residual, has_bias, even_n,
        )  # fmt: skip
    else:
        tiles = tl.num_programs(0) * tl.num_programs(2)
        tile_id = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        size: tl.constexpr = block_rows * block_n
        planes: tl.constexpr = 2 if glu else 1
        place = tl.arange(0, block_rows)[:, None] * block_n + tl.arange(0, block_n)[None, :]
        mine = partial + (tl.program_id(1) * tiles + tile_id) * (size * planes)
        tl.store(mine + place, total, mask=is_row[:, None])
        if glu:
            tl.store(mine + size + place, total_up, mask=is_row[:, None])
        tl.debug_barrier()  # all threads have written their partial sums before one counts this program
        if tl.atomic_add(arrivals + tile_id, 1, sem="acq_rel") == split - 1:
            # The last program adds all partial sums in order, its own from memory too, so that order never varies.
            total = tl.zeros((block_rows, block_n), tl.float32)
            total_up = total
            for other in tl.static_range(split):
                theirs = partial + (other * tiles + tile_id) * (size * planes)
                total += tl.load(theirs + place, mask=is_row[:, None], other=0.0, cache_modifier=".cg")
                if glu:
                    total_up += tl.load(theirs + size + place, mask=is_row[:, None], other=0.0, cache_modifier=".cg")
            tl.store(arrivals + tile_id, 0)
            _finish(
                total, total_up, out, residual, bias, row, is_row, first, n, out_stride, residual_stride,
                block_n, glu, has_residual, has_bias, even_n,
            )  # fmt: skip


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    scratch: SplitKScratch,
    *,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    glu: bool = False,
    plan: Plan | None = None,
) -> None:
    """x [rows, k], weight [n, k] ([2 n, k] with glu), all bf16 -> out [rows, n]; any number of rows.

    `residual` [rows, n] may be `out` itself. Rows of x, out and residual may be strided. Products that share a
    `scratch` must run one after the other.
    """
    rows, k = x.shape
    n = weight.shape[0] // 2 if glu else weight.shape[0]
    assert weight.shape[1] == k and weight.is_contiguous(), (weight.shape, weight.stride(), k)
    assert out.shape == (rows, n), (out.shape, rows, n)
    assert x.data_ptr() != out.data_ptr(), "the output must not overwrite the input"
    for tensor in (x, weight, out, *(() if residual is None else (residual,)), *(() if bias is None else (bias,))):
        assert tensor.dtype == torch.bfloat16 and tensor.stride(-1) == 1, (tensor.dtype, tensor.stride())
    assert residual is None or (residual.shape == out.shape and not glu), (out.shape, glu)
    assert bias is None or (bias.shape == (n,) and not glu), (n, glu)

    plan = plan or choose_plan(n, k, glu, rows)
    block_rows = min(max(16, triton.next_power_of_2(rows)), _MAX_ROWS)
    span = triton.cdiv(triton.cdiv(k, plan.split), plan.block_k) * plan.block_k
    loaded = (block_rows + plan.block_n * (2 if glu else 1)) * plan.block_k * weight.element_size()
    stages = fitting_stages(plan.stages, loaded, primitives.block_bytes(weight.device))
    grid = (triton.cdiv(n, plan.block_n), 1 if plan.serial else plan.split, triton.cdiv(rows, block_rows))
    if plan.split > 1 and not plan.serial:
        tiles = grid[0] * grid[2]
        floats = tiles * plan.split * block_rows * plan.block_n * (2 if glu else 1)
        assert tiles <= scratch.arrivals.numel(), (tiles, scratch.arrivals.numel())
        assert floats <= scratch.partial.numel(), (floats, scratch.partial.numel())
    _linear[grid](
        x, weight, out, x if residual is None else residual, x if bias is None else bias, scratch.partial,
        scratch.arrivals, rows, n, k, span, x.stride(0), out.stride(0), 0 if residual is None else residual.stride(0),
        block_rows=block_rows, block_n=plan.block_n, block_k=plan.block_k, split=plan.split, glu=glu,
        has_residual=residual is not None, has_bias=bias is not None,
        even_n=n % plan.block_n == 0, even_k=k % (span * plan.split) == 0,
        serial=plan.serial,
        num_warps=plan.warps, num_stages=stages,
    )  # fmt: skip
