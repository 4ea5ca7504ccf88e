"""SwiGLU of gates and ups that a matrix product left in memory: y = bf16(bf16(silu(gate)) * up).

For products that cannot do it themselves, as kernels/linear.py does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.shared import rounded, to_bf16

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
