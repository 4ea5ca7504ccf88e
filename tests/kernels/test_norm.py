import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.norm import add_norm, rms_norm, swiglu
from oscine.model.layers import RMSNorm
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow

EPS = 1e-6


@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("width", [64, 96, 2048])
def test_roundings_equal_those_of_the_module(device, rows, width):
    generator = torch.Generator(device).manual_seed(rows)
    x = (3 * torch.randn(rows, width, generator=generator, device=device)).bfloat16()
    module = RMSNorm(width, EPS)
    weight = (1 + 0.2 * torch.randn(width, generator=generator, device=device)).bfloat16()
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, EPS, out)
    assert_same_roundings(out, module(x))


def test_rows_may_be_strided(device):
    x = torch.randn(6, 64, device=device).bfloat16()
    weight = torch.ones(64, device=device).bfloat16()
    dense, apart = torch.zeros(3, 64, device=device).bfloat16(), torch.zeros(6, 64, device=device).bfloat16()
    rms_norm(x[1::2].contiguous(), weight, EPS, dense)
    rms_norm(x[1::2], weight, EPS, apart[::2])
    assert torch.equal(dense, apart[::2]) and not apart[1::2].any()


@pytest.mark.parametrize("width", [96, 2048])
def test_a_sum_and_its_norm_have_the_roundings_of_both(device, width):
    generator = torch.Generator(device).manual_seed(width)
    x, y = (3 * torch.randn(2, 5, width, generator=generator, device=device)).bfloat16()
    weight = (1 + 0.2 * torch.randn(width, generator=generator, device=device)).bfloat16()
    expected_total, expected = x + y, torch.empty_like(x)
    rms_norm(expected_total, weight, EPS, expected)
    out = torch.full_like(x, float("nan"))
    add_norm(x, y, weight, EPS, x, out)
    assert torch.equal(x, expected_total)
    assert_same_roundings(out, expected)


# --- SwiGLU ---


@pytest.mark.parametrize("inner", [40, 1024, 3000])
def test_roundings_of_swiglu_equal_those_of_the_module(device, inner):
    generator = torch.Generator(device).manual_seed(inner)
    gate_up = (3 * torch.randn(5, 2 * inner, generator=generator, device=device)).bfloat16()
    out = torch.full((5, inner), float("nan"), device=device).bfloat16()
    swiglu(gate_up, out)
    gate, up = gate_up.chunk(2, dim=-1)
    assert_same_roundings(out, F.silu(gate) * up)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, in the interpreter
def test_a_gate_far_below_zero_closes(device):
    gate_up = torch.tensor([[-1e4, 2.0, 1.0, 1.0]], device=device).bfloat16()
    out = torch.empty(1, 2, device=device).bfloat16()
    swiglu(gate_up, out)
    assert out[0].tolist() == pytest.approx([0.0, 1.7616], abs=0.01)
