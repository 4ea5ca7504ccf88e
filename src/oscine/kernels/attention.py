"""Attention of new positions: q/k norm, RoPE, the write of the new key and value, softmax over all positions so far.

    q, k = bf16(bf16(x * rsqrt(mean(x^2) + eps)) * weight)                         per head
    low' = bf16(bf16(low * cos) - bf16(high * sin)), high' = bf16(bf16(high * cos) + bf16(low * sin))
    out  = bf16(softmax(q' . k' / sqrt(dim)) @ v)                                  fp32 sums

cos and sin are rounded to bf16, as in the reference. fp fusion is off: the compiler would drop the roundings between
RoPE's products and their sum. Up to the rotated q and k every rounding equals the reference's. A softmax weight goes to
the tensor cores as two bf16 numbers (16 bits; PyTorch's fused attention keeps 8). A program handles one row and one key
head with its query heads, so a row's bits do not depend on the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.primitives import dot, rounded, to_bf16


@triton.jit
def _rotated(x, head, weight, cos, sin, position, eps, dim: tl.constexpr):
    """Heads `head` [n] of the row at x, normed and rotated: [n, dim] fp32 with bf16 values."""
    half: tl.constexpr = dim // 2
    at = tl.arange(0, dim)[None, :]
    other = (at + half) % dim  # the pair's other half; loading it again is cheaper than shuffling
    own = tl.load(x + head[:, None] * dim + at).to(tl.float32)
    pair = tl.load(x + head[:, None] * dim + other).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(own * own, 1) / dim + eps)[:, None]
    own = rounded(rounded(own * inverse) * tl.load(weight + at).to(tl.float32))
    pair = rounded(rounded(pair * inverse) * tl.load(weight + other).to(tl.float32))
    c = rounded(tl.load(cos + position * half + at % half).to(tl.float32))
    s = rounded(tl.load(sin + position * half + at % half).to(tl.float32))
    return rounded(rounded(own * c) + rounded(pair * tl.where(at < half, -s, s)))


@triton.jit
def _talker(
    qkv, q_weight, k_weight, cos, sin, keys, values, block_table, positions, slots, out,
    eps, scale, qkv_stride, out_stride, block_stride, head_stride, table_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, block_size: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    group: tl.constexpr = heads // kv_heads
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        position = tl.load(positions + slot).to(tl.int32)
        blocks = block_table + slot * table_stride
        here = qkv + row * qkv_stride
        # Tensor cores need 16 rows; rows beyond the group repeat its last head and are not stored.
        member = tl.arange(0, tile)
        head = kv_head * group + tl.minimum(member, group - 1)
        column = tl.arange(0, dim)[None, :]
        q = _rotated(here, head, q_weight, cos, sin, position, eps, dim)  # [tile, dim]
        k = _rotated(here, heads + kv_head + tl.arange(0, 1), k_weight, cos, sin, position, eps, dim)  # [1, dim]
        v = tl.load(here + (heads + kv_heads + kv_head) * dim + column)
        new_block = tl.load(blocks + position // block_size).to(tl.int64)
        new_place = new_block * block_stride + kv_head * head_stride + (position % block_size) * dim + column
        tl.store(keys + new_place, to_bf16(k))
        tl.store(values + new_place, v)

        # The sums start with the new position, from registers; memory is read only where earlier steps wrote.
        peak = tl.sum(q * k, 1) * scale  # [tile]
        norm = tl.full((tile,), 1.0, tl.float32)
        total = tl.zeros((tile, dim), tl.float32) + v.to(tl.float32)
        query = to_bf16(q)
        within = tl.arange(0, block_size)
        for first in tl.range(0, position, block_size, num_stages=3):
            base = tl.load(blocks + first // block_size).to(tl.int64) * block_stride + kv_head * head_stride
            is_past = first + within < position
            place = within[:, None] * dim + column
            old_k = tl.load(keys + base + place, mask=is_past[:, None], other=0.0)
            old_v = tl.load(values + base + place, mask=is_past[:, None], other=0.0)
            score = dot(query, old_k, tl.zeros((tile, block_size), tl.float32)) * scale
            score = tl.where(is_past[None, :], score, float("-inf"))
            higher = tl.maximum(peak, tl.max(score, 1))
            shrink = tl.exp(peak - higher)
            share = tl.exp(score - higher[:, None])
            norm = norm * shrink + tl.sum(share, 1)
            large = to_bf16(share)
            small = to_bf16(share - large.to(tl.float32))
            turned = tl.trans(old_v)
            total = dot(small, turned, dot(large, turned, total * shrink[:, None]))
            peak = higher
        place = out + row * out_stride + head[:, None] * dim + column
        tl.store(place, to_bf16(total / norm[:, None]), mask=(member < group)[:, None])


@triton.jit(do_not_specialize=["position"])
def _predictor(
    qkv, q_weight, k_weight, cos, sin, keys, values, out,
    position, eps, scale, qkv_stride, out_stride, row_stride, head_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, capacity: tl.constexpr, new: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    group: tl.constexpr = heads // kv_heads
    kv_head = head // group
    column = tl.arange(0, dim)[None, :]
    at = tl.arange(0, capacity)
    place = sequence * row_stride + kv_head * head_stride
    is_past = (at < position)[:, None]
    k = tl.load(keys + place + at[:, None] * dim + column, mask=is_past, other=0.0).to(tl.float32)
    v = tl.load(values + place + at[:, None] * dim + column, mask=is_past, other=0.0).to(tl.float32)
    one = tl.arange(0, 1)
    for token in tl.static_range(new):
        here = qkv + (sequence * new + token) * qkv_stride
        new_k = _rotated(here, heads + kv_head + one, k_weight, cos, sin, position + token, eps, dim)
        new_v = tl.load(here + (heads + kv_heads + kv_head) * dim + column)
        if head % group == 0:
            tl.store(keys + place + (position + token) * dim + column, to_bf16(new_k))
            tl.store(values + place + (position + token) * dim + column, new_v)
        is_new = (at == position + token)[:, None]
        k = tl.where(is_new, new_k, k)
        v = tl.where(is_new, new_v.to(tl.float32), v)
    for token in tl.static_range(new):
        row = sequence * new + token
        q = _rotated(qkv + row * qkv_stride, head + one, q_weight, cos, sin, position + token, eps, dim)
        score = tl.where(at <= position + token, tl.sum(q * k, 1) * scale, float("-inf"))
        share = tl.exp(score - tl.max(score, 0))
        mixed = tl.sum(share[:, None] * v, 0) / tl.sum(share, 0)
        tl.store(out + row * out_stride + head * dim + tl.arange(0, dim), to_bf16(mixed))


class QkvNorms(NamedTuple):
    """Norms of the heads of q and k, and RoPE's tables."""

    q_norm: Tensor  # [dim]
    k_norm: Tensor  # [dim]
    eps: float
    cos: Tensor  # [positions, dim / 2]
    sin: Tensor


class PagedCache(NamedTuple):
    """One layer's keys and values in blocks, and where they belong."""

    keys: Tensor  # [blocks, kv_heads, positions of a block, dim]
    values: Tensor
    block_table: Tensor  # [slots, max blocks]; for prompts [rows, max blocks]
    position: Tensor  # [slots]; for prompts [rows]


def talker_attention(qkv: Tensor, norms: QkvNorms, cache: PagedCache, slot: Tensor, out: Tensor) -> None:
    """Computes attention of one new position per row; every slot has its own length.

    qkv [rows, (heads + 2 kv_heads) dim], slot [rows] -> out [rows, heads dim]. The table must hold the new position's
    block. Rows with a negative slot keep their values.
    """
    (q_norm, k_norm, eps, cos, sin), (key_blocks, value_blocks, block_table, position) = norms, cache
    _, kv_heads, block_size, dim = key_blocks.shape
    heads = _check(qkv, q_norm, k_norm, cos, sin, out, kv_heads, dim)
    assert key_blocks.shape == value_blocks.shape and key_blocks.stride() == value_blocks.stride(), key_blocks.stride()
    assert key_blocks.stride()[2:] == (dim, 1), key_blocks.stride()
    assert block_size & (block_size - 1) == 0 and block_size >= 16, block_size
    assert key_blocks.dtype == value_blocks.dtype == torch.bfloat16, key_blocks.dtype
    assert block_table.shape[0] == position.shape[0] and block_table.stride(1) == 1, (block_table.shape, position.shape)
    assert slot.shape == (qkv.shape[0],) and slot.is_contiguous() and position.is_contiguous(), slot.shape
    _talker[(qkv.shape[0], kv_heads)](
        qkv, q_norm, k_norm, cos, sin, key_blocks, value_blocks, block_table, position, slot, out,
        eps, dim**-0.5, qkv.stride(0), out.stride(0), key_blocks.stride(0), key_blocks.stride(1), block_table.stride(0),
        heads=heads, kv_heads=kv_heads, dim=dim, block_size=block_size,
        tile=max(16, heads // kv_heads), num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def predictor_attention(
    qkv: Tensor, norms: QkvNorms, keys: Tensor, values: Tensor, position: int, out: Tensor, *, new: int = 1
) -> None:
    """Computes attention with all sequences at the same position; each has `new` adjacent rows, at position, position +
    1 ...

    qkv [sequences * new, (heads + 2 kv_heads) dim], keys and values [sequences or more, kv_heads, capacity, dim],
    filled below `position` -> out [sequences * new, heads dim].
    """
    q_norm, k_norm, eps, cos, sin = norms
    _, kv_heads, capacity, dim = keys.shape
    heads = _check(qkv, q_norm, k_norm, cos, sin, out, kv_heads, dim)
    sequences = qkv.shape[0] // new
    assert sequences * new == qkv.shape[0] and keys.shape[0] >= sequences, (qkv.shape, new, keys.shape)
    assert position >= 0 and position + new <= capacity and capacity & (capacity - 1) == 0, (position, new, capacity)
    assert keys.shape == values.shape and keys.stride() == values.stride(), (keys.stride(), values.stride())
    assert keys.stride()[2:] == (dim, 1) and keys.dtype == values.dtype == torch.bfloat16, (keys.stride(), keys.dtype)
    _predictor[(sequences, heads)](
        qkv, q_norm, k_norm, cos, sin, keys, values, out,
        position, eps, dim**-0.5, qkv.stride(0), out.stride(0), keys.stride(0), keys.stride(1),
        heads=heads, kv_heads=kv_heads, dim=dim, capacity=capacity, new=new,
        num_warps=1,  # one warp holds the 16 positions of a head, without barriers
        enable_fp_fusion=False,
    )  # fmt: skip


def _check(
    qkv: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, out: Tensor, kv_heads: int, dim: int
) -> int:
    """Checks what both kernels require. Returns the number of query heads."""
    heads = qkv.shape[1] // dim - 2 * kv_heads
    group = heads // kv_heads
    assert (heads + 2 * kv_heads) * dim == qkv.shape[1] and group * kv_heads == heads, (qkv.shape, kv_heads, dim)
    # Triton tensors have power-of-two sizes; all published models meet this.
    assert dim & (dim - 1) == 0 and group & (group - 1) == 0, (dim, heads, kv_heads)
    assert qkv.dtype == out.dtype == torch.bfloat16 and qkv.stride(1) == out.stride(1) == 1, (qkv.dtype, out.dtype)
    assert out.shape == (qkv.shape[0], heads * dim), (out.shape, qkv.shape)
    assert q_norm.shape == k_norm.shape == (dim,), (q_norm.shape, k_norm.shape)
    assert cos.shape == sin.shape and cos.shape[1] == dim // 2, (cos.shape, dim)
    assert cos.is_contiguous() and sin.is_contiguous(), (cos.stride(), sin.stride())
    return heads
