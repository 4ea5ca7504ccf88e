"""The codec's front half between its matrix products: dequantization, attention over a sliding window, and depthwise
convolution with LayerNorm. Each row of a tick has one frame.

    dequantize:      x = sum over 16 books of table[book, code]; cos and sin of the frame's angles of RoPE
    attend:          o = softmax(q k / sqrt(dim)) v over the last `window` frames, q and k rotated by RoPE
    depthwise_norm:  d[c] = bias[c] + sum over tap of x[tap, c] * weight[tap, c];  y = (d - mean) / sqrt(var + eps)

Casting: bf16 in and out (tables keep their dtype), fp32 between. RoPE's angles are counted in turns in fp64, so
precision does not decay in long streams. The affine part of the LayerNorm is folded into the next layer.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.conv import Rows
from oscine.kernels.primitives import to_bf16

BOOKS = 16


@triton.jit
def _dequantize(
    codes, tables, slots, frames, positions, ring, turns, cos, sin, size, stride, places,
    channels: tl.constexpr, block: tl.constexpr, books: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(frames + slot)
    c = tl.arange(0, block)
    known = c < channels
    total = tl.zeros((block,), tl.float32)
    for book in tl.static_range(books):
        code = tl.load(codes + row * books + book)
        code = tl.minimum(tl.maximum(code, 0), size - 1)  # end of speech is not a code; its audio is not used
        total += tl.load(tables + (book * size + code) * channels + c, mask=known, other=0.0).to(tl.float32)
    tl.store(ring + slot * stride + (position & (places - 1)) * channels + c, to_bf16(total), mask=known)
    d = tl.arange(0, half)
    turn = position.to(tl.float64) * tl.load(turns + d)
    angle = (turn - tl.floor(turn)).to(tl.float32) * 6.283185307179586
    tl.store(cos + row * half + d, tl.cos(angle))
    tl.store(sin + row * half + d, tl.sin(angle))
    # Only this launch reads and advances the counter; later ones of the frame read `positions`. All warps must have
    # read it before one advances it.
    tl.debug_barrier()
    tl.store(positions + row, position)
    # Never negative, as places are counted modulo the window. Padding rows may advance the scratch slot's often.
    tl.store(frames + slot, (position + 1) & 0x7FFFFFFF)


@triton.jit
def _attend(
    qkv, keys, values, out, cosines, sines, slots, positions, stride, scale,
    heads: tl.constexpr, half: tl.constexpr, window: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Program (row, head). Vectors are split in halves, as RoPE pairs their channels."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row).to(tl.int64)
    position = tl.load(positions + row)
    d = tl.arange(0, half)
    dim: tl.constexpr = 2 * half
    q = qkv + (row * 3 * heads + head) * dim + d
    k = q + heads * dim
    v = k + heads * dim
    # The ring has as many places as the window has frames; places before the stream's start are masked.
    place = tl.arange(0, block)
    here = position % window
    is_new = place == here
    seen = (place < window) & (place <= position) & (place != here)
    ring = slot * stride + head * (window * dim)
    at = ring + place[:, None] * dim + d[None, :]
    new, old = is_new[:, None], seen[:, None]
    # All loads come first.
    cos, sin = tl.load(cosines + row * half + d), tl.load(sines + row * half + d)
    q_low, q_high = tl.load(q).to(tl.float32), tl.load(q + half).to(tl.float32)
    k_low, k_high = tl.load(k).to(tl.float32), tl.load(k + half).to(tl.float32)
    new_value_low, new_value_high = tl.load(v), tl.load(v + half)
    old_key_low, old_key_high = tl.load(keys + at, mask=old, other=0.0), tl.load(keys + at + half, mask=old, other=0.0)
    old_value_low = tl.load(values + at, mask=old, other=0.0)
    old_value_high = tl.load(values + at + half, mask=old, other=0.0)

    query_low, query_high = q_low * cos - q_high * sin, q_high * cos + q_low * sin
    new_key_low, new_key_high = to_bf16(k_low * cos - k_high * sin), to_bf16(k_high * cos + k_low * sin)
    key_low = tl.where(new, new_key_low[None, :], old_key_low).to(tl.float32)
    key_high = tl.where(new, new_key_high[None, :], old_key_high).to(tl.float32)
    value_low = tl.where(new, new_value_low[None, :], old_value_low).to(tl.float32)
    value_high = tl.where(new, new_value_high[None, :], old_value_high).to(tl.float32)
    score = tl.sum(key_low * query_low[None, :] + key_high * query_high[None, :], 1) * scale
    score = tl.where(seen | is_new, score, float("-inf"))
    share = tl.exp(score - tl.max(score, 0))
    share = (share / tl.sum(share, 0))[:, None]
    mixed = out + (row * heads + head) * dim + d
    tl.store(mixed, to_bf16(tl.sum(value_low * share, 0)))
    tl.store(mixed + half, to_bf16(tl.sum(value_high * share, 0)))

    mine = ring + here * dim + d
    tl.store(keys + mine, new_key_low)
    tl.store(keys + mine + half, new_key_high)
    tl.store(values + mine, new_value_low)
    tl.store(values + mine + half, new_value_high)


@triton.jit(do_not_specialize=["columns"])
def _depthwise_norm(
    x, weight, bias, out, slots, positions, columns, stride, places, eps,
    channels: tl.constexpr, block: tl.constexpr, taps: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0)
    row = m // columns
    slot = tl.load(slots + row).to(tl.int64)
    column = tl.load(positions + row) * columns + (m - row * columns)
    c = tl.arange(0, block)
    known = c < channels
    total = tl.load(bias + c, mask=known, other=0.0)
    for tap in tl.static_range(taps):
        source = slot * stride + ((column - (taps - 1 - tap)) & (places - 1)) * channels
        tile = tl.load(x + source + c, mask=known, other=0.0).to(tl.float32)
        total += tile * tl.load(weight + tap * channels + c, mask=known, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / channels
    centred = tl.where(known, total - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / channels + eps)
    tl.store(out + m * channels + c, to_bf16(centred * inverse), mask=known)


# --- wrappers ---


def dequantize(
    codes: Tensor,
    tables: Tensor,
    rows: Rows,
    frames: Tensor,
    ring: Tensor,
    turns: Tensor,
    angles: tuple[Tensor, Tensor],
) -> None:
    """codes [rows, 16] int64, tables [16 * size, channels]. Copies `frames` [slots] int32 to rows.position, advances
    them by one, and writes the frame's vector to the ring [slots, places, channels]. angles: cos and sin of the
    position times `turns` [dim / 2], [rows, dim / 2] fp32 each."""
    batch, (_, places, channels) = len(rows), ring.shape
    assert codes.shape == (batch, BOOKS) and codes.is_contiguous(), codes.shape
    assert tables.shape[0] % BOOKS == 0 and tables.shape[1] == channels and tables.is_contiguous(), tables.shape
    assert places & (places - 1) == 0 and ring.stride()[1:] == (channels, 1), (ring.shape, ring.stride())
    _check_angles(angles, batch, len(turns))
    assert turns.dtype == torch.float64, turns.dtype
    _dequantize[(batch,)](
        codes, tables, rows.slot, frames, rows.position, ring, turns, *angles,
        tables.shape[0] // BOOKS, ring.stride(0), places,
        channels=channels, block=triton.next_power_of_2(channels), books=BOOKS, half=len(turns), num_warps=4,
    )  # fmt: skip


def _check_angles(angles: tuple[Tensor, Tensor], rows: int, half: int) -> None:
    for angle in angles:
        assert angle.shape == (rows, half) and angle.dtype == torch.float32 and angle.is_contiguous(), angle.shape


def rope_turns(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Returns the rotation of each channel pair per position, in turns: [head_dim / 2] fp64."""
    # The frequencies are fp32, as in the plain model.
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return (1.0 / theta**exponents).double() / (2 * math.pi)


def attend(qkv: Tensor, keys: Tensor, values: Tensor, angles: tuple[Tensor, Tensor], rows: Rows, out: Tensor) -> None:
    """qkv [rows, 3 * heads * dim]; keys (already rotated) and values [slots, heads, window, dim], to which the new
    frame is written at its position modulo the window; angles: cos and sin [rows, dim / 2]. out [rows, heads * dim]."""
    _, heads, window, dim = keys.shape
    batch = len(rows)
    assert qkv.shape == (batch, 3 * heads * dim) and qkv.is_contiguous(), (qkv.shape, keys.shape)
    assert out.shape == (batch, heads * dim) and out.is_contiguous(), (out.shape, keys.shape)
    assert keys.is_contiguous() and values.is_contiguous() and values.shape == keys.shape, values.shape
    assert dim & (dim - 1) == 0, dim
    _check_angles(angles, batch, dim // 2)
    _attend[(batch, heads)](
        qkv, keys, values, out, *angles, rows.slot, rows.position, keys.stride(0), dim**-0.5,
        heads=heads, half=dim // 2, window=window, block=triton.next_power_of_2(window), num_warps=1,
    )  # fmt: skip


def depthwise_norm(x: Tensor, weight: Tensor, bias: Tensor, rows: Rows, columns: int, eps: float, out: Tensor) -> None:
    """x: ring [slots, places, channels] that holds this frame's `columns`; weight [taps, channels] bf16, bias
    [channels] fp32; out [rows * columns, channels]."""
    _, places, channels = x.shape
    taps, m = len(weight), len(rows) * columns
    assert weight.shape == (taps, channels) and bias.shape == (channels,), (weight.shape, bias.shape)
    assert places >= columns + taps - 1 and places & (places - 1) == 0, (places, columns, taps)
    assert x.stride()[1:] == (channels, 1), x.stride()
    assert out.shape == (m, channels) and out.is_contiguous(), (out.shape, m)
    _depthwise_norm[(m,)](
        x, weight, bias, out, rows.slot, rows.position, columns, x.stride(0), places, eps,
        channels=channels, block=triton.next_power_of_2(channels), taps=taps, num_warps=4,
    )  # fmt: skip
