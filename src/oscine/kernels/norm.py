"""RMSNorm of some rows.

    y = bf16(bf16(x * rsqrt(mean(x^2) + eps)) * weight)        the inner part in fp32, x and weight bf16

A launch of its own, not a part of the matrix product behind it: there every program would normalize all rows again,
and the rounded rows could not go straight from memory to the tensor cores. Measured on an H200, a tick with the norm
inside was slower at 1, 32 and 64 rows and the same at 8.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.shared import rounded, to_bf16


@triton.jit
def _rms_norm(x, weight, out, width, x_stride, out_stride, eps, block: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, block)
    mask = column < width
    values = tl.load(x + row * x_stride + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    tl.store(out + row * out_stride + column, to_bf16(rounded(values * inverse) * scale), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """x [rows, width] -> out, which may be x itself. Rows may be apart."""
    rows, width = x.shape
    assert out.shape == x.shape and weight.shape == (width,), (x.shape, out.shape, weight.shape)
    assert x.dtype == out.dtype == weight.dtype == torch.bfloat16, (x.dtype, out.dtype, weight.dtype)
    assert x.stride(1) == out.stride(1) == 1, (x.stride(), out.stride())
    _rms_norm[(rows,)](
        x, weight, out, width, x.stride(0), out.stride(0), eps, block=triton.next_power_of_2(width), num_warps=4
    )
