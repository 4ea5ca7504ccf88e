"""Attention of the rows of prompts. The rows of a prompt see each other, so all keys and values are written first:

    k   = RoPE(q/k norm) as in attention.py, v unchanged, to the block of (row's prompt, row's position)
    out = bf16(softmax(q' . k' / sqrt(dim)) @ v), over the positions up to the row's own, rounded as in attention.py

A program handles adjacent rows and one key head with its query heads, so keys and values are read once for many rows.
The rows may belong to several prompts, which it handles one after the other; a row's sums keep their order, and what is
not for a row leaves its sums as they are. So a row's bits depend neither on its place nor on its company.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.attention import PagedCache, QkvNorms, _rotated
from oscine.kernels.primitives import dot, to_bf16

_TILE_ROWS = 32  # of a program


@triton.jit
def _write(
    qkv, k_weight, cos, sin, keys, values, block_table, positions,
    eps, qkv_stride, block_stride, head_stride, table_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, block_size: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    position = tl.load(positions + row)
    if position >= 0:
        here = qkv + row * qkv_stride
        column = tl.arange(0, dim)[None, :]
        k = _rotated(here, heads + kv_head + tl.arange(0, 1), k_weight, cos, sin, position, eps, dim)
        v = tl.load(here + (heads + kv_heads + kv_head) * dim + column)
        block = tl.load(block_table + row * table_stride + position // block_size).to(tl.int64)
        place = block * block_stride + kv_head * head_stride + (position % block_size) * dim + column
        tl.store(keys + place, to_bf16(k))
        tl.store(values + place, v)


@triton.jit
def _attend(
    qkv, q_weight, cos, sin, keys, values, block_table, positions, out,
    rows, eps, scale, qkv_stride, out_stride, block_stride, head_stride, table_stride,
    heads: tl.constexpr, kv_heads: tl.constexpr, dim: tl.constexpr, block_size: tl.constexpr, tile: tl.constexpr,
    in_tiles: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(1)
    group: tl.constexpr = heads // kv_heads
    size: tl.constexpr = tile * group
    member = tl.arange(0, size)
    row = tl.program_id(0) * tile + member // group
    head = kv_head * group + member % group
    position = tl.load(positions + row, mask=row < rows, other=-1).to(tl.int32)
    # Rows of one prompt are adjacent and have the same first block. Padding counts as a prompt without positions.
    earlier = tl.load(positions + row - 1, mask=(member >= group) & (row <= rows), other=-1)
    prompt = tl.load(block_table + row * table_stride, mask=position >= 0, other=-1)
    before = tl.load(block_table + (row - 1) * table_stride, mask=earlier >= 0, other=-1)
    starts = (member == 0) | ((prompt != before) & (member % group == 0))
    number = tl.cumsum(starts.to(tl.int32), 0)

    here = qkv + tl.minimum(row, rows - 1)[:, None] * qkv_stride
    column = tl.arange(0, dim)[None, :]
    query = to_bf16(_rotated(here, head, q_weight, cos, sin, tl.maximum(position, 0)[:, None], eps, dim))
    peak = tl.full((size,), -1e30, tl.float32)  # finite: a row that nothing is for yet must not become NaN
    norm = tl.zeros((size,), tl.float32)
    total = tl.zeros((size, dim), tl.float32)
    within = tl.arange(0, block_size)
    for current in range(1, tl.max(number, 0) + 1):
        mine = number == current
        last = tl.max(tl.where(mine, position, -1), 0)
        blocks = block_table + tl.min(tl.where(mine, row, rows - 1), 0) * table_stride
        for first in tl.range(0, last + 1, block_size, num_stages=3):
            base = tl.load(blocks + first // block_size).to(tl.int64) * block_stride + kv_head * head_stride
            at = first + within
            place = base + within[:, None] * dim + column
            k = tl.load(keys + place, mask=(at <= last)[:, None], other=0.0)
            v = tl.load(values + place, mask=(at <= last)[:, None], other=0.0)
            score = dot(query, k, tl.zeros((size, block_size), tl.float32)) * scale
            score = tl.where(mine[:, None] & (at[None, :] <= position[:, None]), score, float("-inf"))
            higher = tl.maximum(peak, tl.max(score, 1))
            shrink = tl.exp(peak - higher)
            share = tl.exp(score - higher[:, None])
            norm = norm * shrink + tl.sum(share, 1)
            large = to_bf16(share)
            small = to_bf16(share - large.to(tl.float32))
            turned = tl.trans(v)
            mixed = dot(small, turned, dot(large, turned, total * shrink[:, None]))
            total = tl.where(mine[:, None], mixed, total)  # not 0 * v: another prompt's values may be infinite
            peak = higher
    output, at_row = head[:, None] * dim + column, row[:, None]
    if in_tiles:  # as kernels/cuda/tiles.cuh says
        piece = output // 32 % 2 * 4 + output // 2 % 4
        within_row = (piece ^ (at_row % 8)) * 8 + output // 8 % 4 * 2 + output % 2
        place = out + output // 64 * out_stride + at_row * 64 + within_row
    else:
        place = out + at_row * out_stride + output
    norm = tl.where(position >= 0, norm, 1.0)
    tl.store(place, to_bf16(total / norm[:, None]), mask=(position >= 0)[:, None])


def prompt_attention(qkv: Tensor, norms: QkvNorms, cache: PagedCache, out: Tensor) -> None:
    """Follows `write_keys_values`, with the same arguments -> out [rows, heads dim], or these in tiles
    (kernels/cuda/program.py). Rows of a prompt are adjacent and in order. Rows at a negative position keep theirs."""
    (q_norm, _, eps, cos, sin), (key_blocks, value_blocks, block_table, position) = norms, cache
    _, kv_heads, block_size, dim = key_blocks.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    in_tiles = out.ndim == 3
    assert in_tiles or out.shape == (len(qkv), heads * dim), out.shape
    assert out.numel() >= len(qkv) * heads * dim and out.dtype == torch.bfloat16 and out.stride(-1) == 1, out.shape
    assert block_size & (block_size - 1) == 0 and block_size >= 16, block_size
    _attend[(triton.cdiv(len(qkv), _TILE_ROWS), kv_heads)](
        qkv, q_norm, cos, sin, key_blocks, value_blocks, block_table, position, out,
        len(qkv), eps, dim**-0.5, qkv.stride(0), out.stride(0), key_blocks.stride(0), key_blocks.stride(1),
        block_table.stride(0),
        heads=heads, kv_heads=kv_heads, dim=dim, block_size=block_size, tile=_TILE_ROWS,
        in_tiles=in_tiles, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def write_keys_values(qkv: Tensor, norms: QkvNorms, cache: PagedCache) -> None:
    """Writes the keys and values of qkv [rows, (heads + 2 kv_heads) dim]. Rows at a negative position are padding and
    write nothing."""
    (_, k_norm, eps, cos, sin), (key_blocks, value_blocks, block_table, position) = norms, cache
    _, kv_heads, block_size, dim = key_blocks.shape
    heads = qkv.shape[1] // dim - 2 * kv_heads
    assert qkv.dtype == key_blocks.dtype == value_blocks.dtype == torch.bfloat16, (qkv.dtype, key_blocks.dtype)
    assert key_blocks.stride() == value_blocks.stride() and key_blocks.stride()[2:] == (dim, 1), key_blocks.stride()
    assert block_table.shape[0] == len(position) == len(qkv) and block_table.stride(1) == 1, block_table.shape
    _write[(len(qkv), kv_heads)](
        qkv, k_norm, cos, sin, key_blocks, value_blocks, block_table, position,
        eps, qkv.stride(0), key_blocks.stride(0), key_blocks.stride(1), block_table.stride(0),
        heads=heads, kv_heads=kv_heads, dim=dim, block_size=block_size, num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
