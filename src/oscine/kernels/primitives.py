"""Primitives that all kernels share: rounding, the matrix product, the places of columns, and limits of shared memory.
Some replace what Triton's interpreter lacks."""

from __future__ import annotations

import os
from functools import cache

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def to_bf16(x):
    """Round to nearest, ties to even."""
    if INTERPRETED:  # its cast truncates: round first, then the cast is exact
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def rounded(x):
    """fp32 in and out, rounded to a bf16 value."""
    return to_bf16(x).to(tl.float32)


@triton.jit
def dot(x, weight, total):
    """total + x @ weight.T: bf16 in, fp32 sums."""
    if INTERPRETED:  # no bf16 product there
        return total + tl.dot(x.to(tl.float32), weight.to(tl.float32).T)
    else:  # noqa: RET505  (Triton removes the dead branch only with an else)
        return tl.dot(x, weight.T, total)


@triton.jit
def sum_of_rows(x):
    """Sums of the rows of x, whose length is a power of two of at most 256. The order of tl.sum depends on how a block
    is spread over threads, and so on its size. Here it does not: the second half is added to the first until one column
    is left, and a sum of two numbers has no order."""
    for _ in tl.static_range(8):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), 1)
    return tl.reshape(x, (x.shape[0],))


@triton.jit
def place_columns(m, size, columns, slots, positions):
    """Returns for the columns `m` of all rows: m, slot, and column of the slot's stream. Columns beyond the last one
    are computed from the last one, and not stored: so no load of x has a mask."""
    known_m = tl.minimum(m, size - 1)
    row = known_m // columns
    slot = tl.load(slots + row).to(tl.int64)
    # Wraps after a day of speech, which is harmless: the number of places in a ring is a power of two.
    column = tl.load(positions + row) * columns + (known_m - row * columns)
    return known_m, slot, column


# --- Shared memory of one thread block.


# Bytes of a block by compute capability, from NVIDIA's table (the SM's shared memory minus 1 KiB).
BLOCK_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}


@cache
def block_bytes(device: torch.device) -> int:
    """Returns the shared memory of a block on this device. The CPU, where the interpreter runs, has no limit and gets
    the largest one."""
    if device.type != "cuda":
        return max(BLOCK_BYTES.values())
    properties = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # the stubs lack it


def fitting_stages(stages: int, tile_bytes: int, limit_bytes: int) -> int:
    """Returns the number of pipeline stages, `stages` or fewer, whose tiles fit into shared memory. `tile_bytes` are
    those that one step loads; Triton keeps them for all stages but one. Results do not depend on the number of
    stages."""
    while stages > 2 and (stages - 1) * tile_bytes > limit_bytes:
        stages -= 1
    return stages
