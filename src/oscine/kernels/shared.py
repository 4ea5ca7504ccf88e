"""Roundings and the matrix product, once for every kernel, with what Triton's interpreter lacks for them."""

from __future__ import annotations

import os

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def to_bf16(x):
    """Round to nearest, ties to even."""
    if INTERPRETED:  # its cast cuts the low bits off: do the rounding first, then the cast is exact
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.bfloat16)


@triton.jit
def rounded(x):
    """fp32 in and out, with the value that bf16 would keep."""
    return to_bf16(x).to(tl.float32)


@triton.jit
def dot(x, weight, total):
    """total + x @ weight.T: bf16 in, fp32 sums."""
    if INTERPRETED:  # it has no bf16 product
        return total + tl.dot(x.to(tl.float32), weight.to(tl.float32).T)
    else:  # noqa: RET505  (both branches are compiled away but one, only where there is an else)
        return tl.dot(x, weight.T, total)
