"""RMSNorm of several rows.

    y = bf16(bf16(x * rsqrt(mean(x^2) + eps)) * weight)        inner expression in fp32; x and weight bf16

A separate launch, not fused into the next matrix product: there every program would normalize all rows again, and the
rounded rows could not go directly from memory to the tensor cores. On an H200 a tick with the fused norm was slower at
1, 32 and 64 rows and equal at 8.
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
    """x [rows, width] -> out, which may be x itself. Rows may be strided."""
    rows, width = x.shape
    assert out.shape == x.shape and weight.shape == (width,), (x.shape, out.shape, weight.shape)
    assert x.dtype == out.dtype == weight.dtype == torch.bfloat16, (x.dtype, out.dtype, weight.dtype)
    assert x.stride(1) == out.stride(1) == 1, (x.stride(), out.stride())
    _rms_norm[(rows,)](
        x, weight, out, width, x.stride(0), out.stride(0), eps, block=triton.next_power_of_2(width), num_warps=4
    )
