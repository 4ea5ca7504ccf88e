"""RMSNorm of several rows.

    y = bf16(bf16(x * rsqrt(mean(x^2) + eps)) * weight)        inner expression in fp32; x and weight bf16
    add_norm:  total = bf16(x + y), and its norm

A separate launch, not fused into the next matrix product: there every program would normalize all rows again, and the
rounded rows could not go directly from memory to the tensor cores. On an H200 a tick with the fused norm was slower at
1, 32 and 64 rows and equal at 8.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.primitives import rounded, to_bf16


@triton.jit
def _normed(values, weight, width, eps, column, mask):
    scale = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    return to_bf16(rounded(values * inverse) * scale)


@triton.jit
def _rms_norm(x, weight, out, width, x_stride, out_stride, eps, block: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, block)
    mask = column < width
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, _normed(values, weight, width, eps, column, mask), mask=mask)


@triton.jit
def _add_norm(x, y, weight, total, out, width, eps, block: tl.constexpr):
    column = tl.arange(0, block)
    mask = column < width
    at = tl.program_id(0) * width + column
    before = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    values = rounded(before + tl.load(y + at, mask=mask, other=0.0).to(tl.float32))
    tl.store(total + at, to_bf16(values), mask=mask)
    tl.store(out + at, _normed(values, weight, width, eps, column, mask), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """x [rows, width] -> out, which may be x itself. Rows may be strided."""
    rows, width = x.shape
    assert out.shape == x.shape and weight.shape == (width,), (x.shape, out.shape, weight.shape)
    assert x.dtype == out.dtype == weight.dtype == torch.bfloat16, (x.dtype, out.dtype, weight.dtype)
    assert x.stride(1) == out.stride(1) == 1, (x.stride(), out.stride())
    _rms_norm[(rows,)](
        x, weight, out, width, x.stride(0), out.stride(0), eps, block=triton.next_power_of_2(width), num_warps=4
    )


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, total: Tensor, out: Tensor) -> None:
    """total = bf16(x + y), which may be x itself, and out = its RMSNorm. All [rows, width]."""
    rows, width = x.shape
    assert weight.shape == (width,) and weight.dtype == torch.bfloat16, weight.shape
    for tensor in (x, y, total, out):
        assert tensor.shape == x.shape and tensor.dtype == torch.bfloat16 and tensor.is_contiguous(), tensor.shape
    _add_norm[(rows,)](x, y, weight, total, out, width, eps, block=triton.next_power_of_2(width), num_warps=4)


# --- SwiGLU of gates and ups in memory: y = bf16(bf16(silu(gate)) * up).
#
# It follows products that cannot compute it themselves, unlike those of kernels/linear.py.


_COLUMNS = 1024  # of a program: 8 for each thread, which it loads at once


@triton.jit
def _swiglu(gate_up, out, inner, block: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    mask = column < inner
    gate = tl.load(gate_up + row * 2 * inner + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * inner + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * inner + column, to_bf16(rounded(gate / (1.0 + tl.exp(-gate))) * up), mask=mask)


def swiglu(gate_up: Tensor, out: Tensor) -> None:
    """gate_up [rows, 2 inner]: gates, then ups -> out [rows, inner]."""
    rows, inner = out.shape
    assert gate_up.shape == (rows, 2 * inner), (gate_up.shape, out.shape)
    for tensor in (gate_up, out):
        assert tensor.dtype == torch.bfloat16 and tensor.is_contiguous(), (tensor.dtype, tensor.stride())
    _swiglu[(rows, triton.cdiv(inner, _COLUMNS))](gate_up, out, inner, block=_COLUMNS, num_warps=4)
