import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.norm import swiglu
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("inner", [40, 1024, 3000])
def test_roundings_equal_those_of_the_module(device, inner):
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
