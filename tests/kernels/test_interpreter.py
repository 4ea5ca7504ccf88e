"""What makes Triton's interpreter quicker changes no value."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

import triton
from triton import language as tl

from tests.kernels.interpreter import cut_off, widened

BITS = np.arange(2**16, dtype=np.uint16)  # every bf16 value


@pytest.fixture(autouse=True)
def without_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled")


def test_bf16_is_widened_as_by_torch_and_back() -> None:
    expected = torch.from_numpy(BITS.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widened(BITS), expected.view(np.uint32))
    np.testing.assert_array_equal(cut_off(expected), BITS)
    np.testing.assert_array_equal(cut_off((widened(BITS) | 0xFFFF).view(np.float32)), BITS)


@triton.jit
def _double(x, out, size: tl.constexpr):
    at = tl.arange(0, size)[:, None] * size + tl.arange(0, size)[None, :]
    values = tl.load(x + at).to(tl.float32)
    tl.store(out + at, (values + tl.trans(values)).to(tl.bfloat16))


def test_a_kernel_computes_on_bf16_blocks_of_several_shapes() -> None:
    for size in (4, 8):
        x = torch.arange(size * size, dtype=torch.float32).view(size, size).bfloat16()
        out = torch.empty_like(x)
        _double[(1,)](x, out, size)
        assert torch.equal(out, x + x.T)
