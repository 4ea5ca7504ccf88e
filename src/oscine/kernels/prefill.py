"""Writes the keys and values of a prompt's rows before attention reads them: the rows see each other.

k = RoPE(q/k norm) as in attention.py, v unchanged, to the block of (row's slot, row's position)
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.attention import _rotated
from oscine.kernels.shared import to_bf16


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


def write_keys_values(
    qkv: Tensor,
    k_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    key_blocks: Tensor,
    value_blocks: Tensor,
    block_table: Tensor,
    position: Tensor,
) -> None:
    """qkv [rows, (heads + 2 kv_heads) dim]; block_table [rows, max blocks] and position [rows] belong to each row.
    Rows at a negative position are padding and write nothing."""
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
