"""Causal convolutions over ring buffers, as matrix products; a linear layer is a convolution with one tap.

    y[m, n] = bias[n] + residual[m, n] + sum over tap, c of x[m - dilation * (taps - 1 - tap), c] * weight[n, tap, c]

m counts the columns of all rows of a tick, `columns` new ones each; x is dense, or a ring that holds the columns of
this frame and earlier ones per slot (channels last). A transposed convolution makes `phases` columns of each:
n = phase * channels + channel. With `norm_eps` y's sum is divided by the root mean square of x[m].

Casting: bf16 x and weight, fp32 sums; bias, residual and norm in fp32; y is rounded to bf16 once. The activation is
computed in fp32 from the rounded y and rounded to bf16 (SwiGLU: from the unrounded sums).

A row's bits do not depend on the number of rows (docs/kernels.md). A layer's sum over K is divided into the same parts
for any number of rows, and the parts are added in order: by the last of several programs that have one part each, or
by one program that has all of them (`serial`). The tensor core instructions for few and for many rows add alike.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels import primitives
from oscine.kernels.conv_tiles import Tile, plain_tile, tuned_tile
from oscine.kernels.primitives import INTERPRETED, dot, fitting_stages, place_columns, sum_of_rows, to_bf16

Activation = Literal["none", "snake", "gelu", "swiglu"]


@triton.jit
def apply_snake(x, rate, depth):
    """x + depth * sin(rate * x)^2. The square has period pi: reduced to -pi/2..pi/2, the hardware's sine has an error
    of 2^-21, far below bf16 rounding."""
    angle = x * rate
    angle -= tl.floor(angle * 0.3183098861837907 + 0.5) * 3.141592653589793
    if INTERPRETED:
        wave = tl.sin(angle)
    else:
        wave = tl.inline_asm_elementwise(
            "sin.approx.ftz.f32 $0, $1;", "=r,r", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
    return x + wave * wave * depth


@triton.jit
def load_operands(
    m, first, live, bias, residual, rate, depth, outputs, channels,
    width: tl.constexpr, activation: tl.constexpr, has_bias: tl.constexpr, has_residual: tl.constexpr,
    phased: tl.constexpr, even_n: tl.constexpr,
):  # fmt: skip
    """What `store_outputs` adds to the sums of `width` outputs from `first` on, and the snake's rates and depths. Zeros
    for those that a layer lacks."""
    n = first + tl.arange(0, width)
    known = n < outputs
    added = tl.zeros((width,), tl.float32)
    rates, depths = added, added
    more = tl.zeros((m.shape[0], width), tl.bfloat16)
    if has_bias:
        added = tl.load(bias + n, mask=known, other=0.0)
    if has_residual:
        inside = live[:, None]
        if not even_n:
            inside = inside & known[None, :]
        more = tl.load(residual + m[:, None] * outputs + n[None, :], mask=inside, other=0.0)
    if activation == "snake":
        channel = n
        if phased:
            channel = n % channels
        rates = tl.load(rate + channel, mask=known, other=0.0)
        depths = tl.load(depth + channel, mask=known, other=0.0)
    return added, more, rates, depths


@triton.jit
def store_outputs(
    y, m, first, live, column, slot, added, more, rates, depths, raw, out,
    outputs, channels, out_stride, out_places,
    width: tl.constexpr, activation: tl.constexpr, has_bias: tl.constexpr, has_residual: tl.constexpr,
    has_raw: tl.constexpr, kind: tl.constexpr, phased: tl.constexpr, even_n: tl.constexpr,
):  # fmt: skip
    """Writes `width` outputs from `first` on. `column` counts from the stream's start. `kind` of out: none, dense or
    ring."""
    n = first + tl.arange(0, width)
    inside = live[:, None]
    if not even_n:
        inside = inside & (n < outputs)[None, :]
    channel = n
    if phased:
        channel = n % channels
    dense = m[:, None] * outputs + n[None, :]
    if has_bias:
        y += added[None, :]
    if has_residual:
        y += more.to(tl.float32)
    if activation == "swiglu":
        gate, up = tl.split(tl.reshape(y, (y.shape[0], width // 2, 2)))
        half = first // 2 + tl.arange(0, width // 2)
        fits = live[:, None] & (half < outputs // 2)[None, :]
        product = gate / (1.0 + tl.exp(-gate)) * up
        tl.store(out + m[:, None] * (outputs // 2) + half[None, :], to_bf16(product), mask=fits)
    else:
        rounded = to_bf16(y)
        if has_raw:
            tl.store(raw + dense, rounded, mask=inside)
        result = rounded
        if activation == "snake":
            result = to_bf16(apply_snake(rounded.to(tl.float32), rates[None, :], depths[None, :]))
        if activation == "gelu":
            wide = rounded.to(tl.float32)
            result = to_bf16(0.5 * wide * (1.0 + tl.erf(wide * 0.7071067811865476)))
        if kind == "dense":
            tl.store(out + dense, result, mask=inside)
        if kind == "ring":
            at = column[:, None]
            if phased:
                at = at * (outputs // channels) + (n // channels)[None, :]
            place = (slot * out_stride)[:, None] + (at & (out_places - 1)) * channels + channel[None, :]
            tl.store(out + place, result, mask=inside)


@triton.jit(do_not_specialize=["size", "columns", "taps", "dilation", "steps", "steps_per_split", "eps"])
def _conv(
    x, weight, bias, residual, raw, out, rate, depth, slots, positions, partials, arrivals,
    size, outputs, channels, columns, taps, dilation, in_stride, in_places, out_stride, out_places,
    steps, steps_per_split, eps, inputs: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, extra_n: tl.constexpr, block_k: tl.constexpr, split: tl.constexpr,
    serial: tl.constexpr, from_ring: tl.constexpr, has_norm: tl.constexpr, activation: tl.constexpr,
    has_bias: tl.constexpr, has_residual: tl.constexpr, has_raw: tl.constexpr, kind: tl.constexpr,
    phased: tl.constexpr, even_k: tl.constexpr, even_n: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """Program (i, j, s): outputs i * block_n .., columns j * block_m .., steps s * steps_per_split .. of the sum; all
    steps if serial."""
    first = tl.program_id(0) * block_n
    m = tl.program_id(1) * block_m + tl.arange(0, block_m)
    n = first + tl.arange(0, block_n)
    k = tl.arange(0, block_k)
    live = m < size
    known_m, slot, column = place_columns(m, size, columns, slots, positions)
    oldest = (column - dilation * (taps - 1))[:, None]
    total = tl.zeros((block_m, block_n), tl.float32)
    if extra_n:
        total2 = tl.zeros((block_m, extra_n), tl.float32)
        weight2 = weight + (block_n + tl.arange(0, extra_n))[:, None] * (taps * inputs) + k[None, :]
    if has_norm:
        squares = tl.zeros((block_m, block_k), tl.float32)
    # Addresses are 64 bits wide here; in the loop, 32 bits are added to them.
    if from_ring:
        columns_at = x + (slot * in_stride)[:, None] + k[None, :]
    else:
        columns_at = x + (known_m.to(tl.int64) * inputs)[:, None] + k[None, :]
    weight_at = weight + n[:, None] * (taps * inputs) + k[None, :]
    if early:  # while the sums wait for their first weights
        added, more, rates, depths = load_operands(
            m, first, live, bias, residual, rate, depth, outputs, channels,
            block_n, activation, has_bias, has_residual, phased, even_n,
        )  # fmt: skip
    steps_per_tap: tl.constexpr = (inputs + block_k - 1) // block_k
    parts: tl.constexpr = split if serial else 1
    for part in range(parts):
        if serial:  # sums of their own, as in a program of their own
            whole = total
            total = tl.zeros((block_m, block_n), tl.float32)
        begin = (tl.program_id(2) + part) * steps_per_split
        for step in range(begin, tl.minimum(begin + steps_per_split, steps)):
            tap = step // steps_per_tap
            c = (step - tap * steps_per_tap) * block_k
            # Weights first: their addresses do not wait for the slots. Full shapes load without masks: masked weights
            # cannot be prefetched in one piece.
            at = tap * inputs + c
            if even_k and even_n:
                factors = tl.load(weight_at + at)
            else:
                known = (n < outputs)[:, None] & (c + k < inputs)[None, :]
                factors = tl.load(weight_at + at, mask=known, other=0.0)
            if extra_n:
                factors2 = tl.load(weight2 + at)
            if from_ring:
                tile_at = columns_at + (((oldest + tap * dilation) & (in_places - 1)) * inputs + c)
            else:
                tile_at = columns_at + c
            if even_k:  # noqa: SIM108  (a compile-time branch)
                tile = tl.load(tile_at)
            else:
                tile = tl.load(tile_at, mask=(c + k < inputs)[None, :], other=0.0)
            total = dot(tile, factors, total)
            if extra_n:
                total2 = dot(tile, factors2, total2)
            if has_norm:
                wide = tile.to(tl.float32)
                squares += wide * wide
        if serial:
            total += whole
    if has_norm:
        total *= tl.rsqrt(sum_of_rows(squares) / inputs + eps)[:, None]

    if split == 1 or serial:
        if not early:
            added, more, rates, depths = load_operands(
                m, first, live, bias, residual, rate, depth, outputs, channels,
                block_n, activation, has_bias, has_residual, phased, even_n,
            )  # fmt: skip
        store_outputs(
            total, m, first, live, column, slot, added, more, rates, depths, raw, out,
            outputs, channels, out_stride, out_places,
            block_n, activation, has_bias, has_residual, has_raw, kind, phased, even_n,
        )  # fmt: skip
        if extra_n:
            added, more, rates, depths = load_operands(
                m, block_n, live, bias, residual, rate, depth, outputs, channels,
                extra_n, activation, has_bias, has_residual, phased, even_n,
            )  # fmt: skip
            store_outputs(
                total2, m, block_n, live, column, slot, added, more, rates, depths, raw, out,
                outputs, channels, out_stride, out_places,
                extra_n, activation, has_bias, has_residual, has_raw, kind, phased, even_n,
            )  # fmt: skip
    else:
        # Each program stores its partial sums; the last one adds all of them in order, its own from memory too. The
        # loads bypass the L1 cache, which does not see other programs' stores.
        tiles = tl.num_programs(0) * tl.num_programs(1)
        tile_id = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        within = tl.arange(0, block_m)[:, None] * block_n + tl.arange(0, block_n)[None, :]
        tl.store(partials + (tl.program_id(2) * tiles + tile_id) * (block_m * block_n) + within, total)
        tl.debug_barrier()  # all threads have stored before one counts this program
        if tl.atomic_add(arrivals + tile_id, 1, sem="acq_rel") == split - 1:
            total = tl.zeros((block_m, block_n), tl.float32)
            for other in tl.static_range(split):
                theirs = partials + (other * tiles + tile_id) * (block_m * block_n)
                total += tl.load(theirs + within, cache_modifier=".cg")
            tl.store(arrivals + tile_id, 0)
            if not early:
                added, more, rates, depths = load_operands(
                    m, first, live, bias, residual, rate, depth, outputs, channels,
                    block_n, activation, has_bias, has_residual, phased, even_n,
                )  # fmt: skip
            store_outputs(
                total, m, first, live, column, slot, added, more, rates, depths, raw, out,
                outputs, channels, out_stride, out_places,
                block_n, activation, has_bias, has_residual, has_raw, kind, phased, even_n,
            )  # fmt: skip


# --- wrappers ---


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a tick: row b belongs to slot[b], which has decoded position[b] frames."""

    slot: Tensor  # [rows] int32
    position: Tensor  # [rows] int32

    def __len__(self) -> int:
        return len(self.slot)


@dataclass(frozen=True, slots=True, eq=False)
class Conv:
    """The weights of one layer in the kernel's layout, and its epilogue."""

    weight: Tensor  # [phases * channels, taps * inputs] bf16; SwiGLU: gate and up rows alternate
    columns: int  # new input columns per frame
    bias: Tensor | None = None  # [phases * channels] fp32
    taps: int = 1
    dilation: int = 1
    phases: int = 1
    norm_eps: float | None = None
    activation: Activation = "none"
    snake: tuple[Tensor, Tensor] | None = None  # rate and depth of the activation, [channels] fp32 each

    def __post_init__(self) -> None:
        outputs, depth = self.weight.shape
        assert self.weight.dtype == torch.bfloat16 and self.weight.is_contiguous(), self.weight.dtype
        assert depth % self.taps == 0 and outputs % self.phases == 0, (self.weight.shape, self.taps, self.phases)
        assert (self.snake is not None) == (self.activation == "snake"), self.activation
        assert self.bias is None or (self.bias.shape == (outputs,) and self.bias.dtype == torch.float32), self.bias
        for vector in self.snake or ():
            assert vector.shape == (self.channels,) and vector.dtype == torch.float32, vector.shape

    @property
    def inputs(self) -> int:
        return self.weight.shape[1] // self.taps

    @property
    def channels(self) -> int:
        return self.weight.shape[0] // self.phases

    def tile(self, rows: int) -> Tile:
        shape = self.taps, self.inputs, len(self.weight)
        tile = tuned_tile(shape, rows) or plain_tile(shape, rows * self.columns, may_split=self.norm_eps is None)
        loaded = (tile.rows + tile.outputs + tile.extra) * tile.depth * self.weight.element_size()
        limit = primitives.block_bytes(self.weight.device)
        return tile._replace(stages=fitting_stages(tile.stages, loaded, limit))

    def grid(self, rows: int) -> tuple[int, int, int]:
        tile = self.tile(rows)
        across = 1 if tile.extra else triton.cdiv(len(self.weight), tile.outputs)
        return across, triton.cdiv(rows * self.columns, tile.rows), 1 if tile.serial else tile.splits


class Workspace:
    """Partial sums of split programs. Layers that run one after the other share them; concurrent streams must not."""

    def __init__(self, layers: Iterable[Conv], max_rows: int, device: torch.device) -> None:
        partials, tiles = 1, 1
        for layer in layers:
            for rows in range(1, max_rows + 1):
                tile, (across, down, splits) = layer.tile(rows), layer.grid(rows)
                if splits > 1:
                    partials = max(partials, across * down * splits * tile.rows * tile.outputs)
                    tiles = max(tiles, across * down)
        self.partials = torch.empty(partials, dtype=torch.float32, device=device)
        self.arrivals = torch.zeros(tiles, dtype=torch.int32, device=device)  # zero between launches


def conv(
    layer: Conv,
    x: Tensor,
    rows: Rows,
    workspace: Workspace,
    *,
    residual: Tensor | None = None,
    raw: Tensor | None = None,
    out: Tensor | None = None,
) -> None:
    """x, out: dense [columns of all rows, channels] or a ring [slots, places, channels]. raw: dense, y before the
    activation; it may be `residual`, which is then updated in place."""
    outputs, channels, size = len(layer.weight), layer.channels, len(rows) * layer.columns
    tile, grid = layer.tile(len(rows)), layer.grid(len(rows))
    from_ring, into_ring = x.ndim == 3, out is not None and out.ndim == 3
    check_input(layer, x, size)
    for dense in (residual, raw):
        assert dense is None or dense.shape == (size * layer.phases, channels), (dense.shape, size, channels)
    if out is not None and into_ring:
        check_ring(out, layer.columns * layer.phases, channels)
    elif out is not None:
        width = channels // 2 if layer.activation == "swiglu" else channels
        assert out.shape == (size * layer.phases, width) and out.is_contiguous(), (out.shape, size, width)
    assert tile.splits == 1 or (layer.norm_eps is None and not tile.extra), tile
    even_k = layer.inputs % tile.depth == 0
    assert not tile.extra or (even_k and tile.outputs + tile.extra == outputs), tile
    steps = layer.taps * triton.cdiv(layer.inputs, tile.depth)
    unused: Any = layer.weight
    rate, depth = layer.snake or (unused, unused)
    _conv[grid](
        x, layer.weight,
        unused if layer.bias is None else layer.bias,
        unused if residual is None else residual,
        unused if raw is None else raw,
        unused if out is None else out,
        rate, depth, rows.slot, rows.position, workspace.partials, workspace.arrivals,
        size, outputs, channels, layer.columns, layer.taps, layer.dilation,
        x.stride(0) if from_ring else 0, x.shape[1] if from_ring else 0,
        out.stride(0) if out is not None and into_ring else 0, out.shape[1] if out is not None and into_ring else 0,
        steps, triton.cdiv(steps, tile.splits), layer.norm_eps or 0.0,
        inputs=layer.inputs, block_m=tile.rows, block_n=tile.outputs, extra_n=tile.extra, block_k=tile.depth,
        split=tile.splits, serial=tile.serial,
        from_ring=from_ring, has_norm=layer.norm_eps is not None, activation=layer.activation,
        has_bias=layer.bias is not None, has_residual=residual is not None, has_raw=raw is not None,
        kind="none" if out is None else "ring" if into_ring else "dense", phased=layer.phases > 1,
        even_k=even_k, even_n=tile.extra > 0 or outputs % tile.outputs == 0, early=tile.early,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=tile.registers or None,
    )  # fmt: skip


def check_input(layer: Conv, x: Tensor, size: int) -> None:
    if x.ndim == 3:
        check_ring(x, layer.columns + (layer.taps - 1) * layer.dilation, layer.inputs)
    else:
        assert x.shape == (size, layer.inputs) and x.is_contiguous() and layer.taps == 1, (x.shape, size)


def check_ring(ring: Tensor, columns: int, channels: int) -> None:
    _, places, width = ring.shape
    assert width == channels and ring.stride()[1:] == (channels, 1), (ring.shape, ring.stride(), channels)
    assert places >= columns and places & (places - 1) == 0, (places, columns)


# --- The vocoder's last convolution: one output channel, clamped and rounded to PCM16. Its input is a ring, as above.

_MAX_LANES = 32


@triton.jit(do_not_specialize=["size", "columns"])
def _last_conv(
    x, weight, bias, slots, positions, samples, pcm16, size, columns, in_stride, in_places,
    inputs: tl.constexpr, taps: tl.constexpr, has_samples: tl.constexpr, block_m: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Channels are added up in `block_c` lanes, which are added at the end: that takes exchanges between threads."""
    m = tl.program_id(0) * block_m + tl.arange(0, block_m)
    c = tl.arange(0, block_c)
    live = m < size
    _, slot, column = place_columns(m, size, columns, slots, positions)
    lanes = tl.zeros((block_m, block_c), tl.float32)
    for tap in tl.static_range(taps):
        source = slot * in_stride + ((column - (taps - 1 - tap)) & (in_places - 1)) * inputs
        for part in tl.static_range(inputs // block_c):
            tile = tl.load(x + source[:, None] + (part * block_c + c)[None, :])
            factors = tl.load(weight + tap * inputs + part * block_c + c)
            lanes = tl.fma(tile.to(tl.float32), tl.broadcast_to(factors.to(tl.float32)[None, :], lanes.shape), lanes)
    sample = tl.minimum(tl.maximum(sum_of_rows(lanes) + tl.load(bias), -1.0), 1.0)
    if has_samples:
        tl.store(samples + m, sample, mask=live)
    # Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even.
    whole = (sample * 32767.0 + 12582912.0) - 12582912.0
    tl.store(pcm16 + m, whole.to(tl.int16), mask=live)


def last_conv(layer: Conv, x: Tensor, rows: Rows, *, pcm16_out: Tensor, samples_out: Tensor | None = None) -> None:
    """One output channel: samples in -1..1, as PCM16 and optionally as floats; both [rows, columns]."""
    size = len(rows) * layer.columns
    assert len(layer.weight) == 1 and layer.bias is not None and layer.dilation == 1, layer.weight.shape
    check_input(layer, x, size)
    shape = (len(rows), layer.columns)
    assert pcm16_out.shape == shape and pcm16_out.dtype == torch.int16 and pcm16_out.is_contiguous(), pcm16_out.shape
    assert samples_out is None or (samples_out.shape == shape and samples_out.is_contiguous()), shape
    block, warps = (32, 4) if len(rows) < 16 else (128, 2)  # the fastest on an H200
    _last_conv[(triton.cdiv(size, block),)](
        x, layer.weight, layer.bias, rows.slot, rows.position,
        layer.bias if samples_out is None else samples_out, pcm16_out,
        size, layer.columns, x.stride(0), x.shape[1],
        inputs=layer.inputs, taps=layer.taps, has_samples=samples_out is not None, block_m=block,
        block_c=min(layer.inputs & -layer.inputs, _MAX_LANES), num_warps=warps,
        enable_fp_fusion=False,  # sample * 32767 is rounded separately, as in audio.pcm16
    )  # fmt: skip
