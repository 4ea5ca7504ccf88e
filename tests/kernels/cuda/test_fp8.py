"""FP8 weights: what is kept of a weight, and products that have the same bits in every kernel."""

from pathlib import Path

import pytest
import torch

from oscine.kernels.cuda.linear import Epilogue, Few, Product, Tiled
from oscine.kernels.operations import dequantized, quantize
from tests.kernels.cuda.test_linear import Case
from tests.kernels.measures import assert_same_roundings

INPUTS, SEGMENTS = 1024, 8
FEW = Few(2)
ALONE, CLUSTER = Tiled(32, 1, 1, stages=3), Tiled(16, 1, 4, stages=3)


def test_a_weight_is_at_most_half_a_step_of_e4m3_away() -> None:
    weight = torch.randn(8, 128, generator=torch.Generator().manual_seed(0)).bfloat16()
    values, scale = dequantized(quantize(weight))
    exact, kept = weight.double(), values.double() * scale.double()[:, None]
    step = torch.maximum(exact.abs() / 16, scale.double()[:, None] * 2**-10)  # 3 bits of mantissa; subnormal numbers
    assert bool(((kept - exact).abs() <= step * 1.0001).all())
    assert bool((kept.abs().amax(dim=1) >= exact.abs().amax(dim=1) * 0.9999).all())


def test_a_row_of_zeros_stays_one() -> None:
    values, scale = dequantized(quantize(torch.zeros(2, 64).bfloat16()))
    assert not values.any() and torch.equal(scale, torch.ones(2))


def test_all_values_of_e4m3_survive_their_order() -> None:
    exact = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).bfloat16()
    row = torch.where(exact.isnan(), 0, exact)[None]
    values, scale = dequantized(quantize(row))
    assert scale.item() == 1.0 and torch.equal(values, row)


@pytest.mark.slow
def test_a_product_widens_every_value_exactly(folder: Path) -> None:
    case = Case(1, Product(16, INPUTS, fp8=True), folder)
    exact = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).bfloat16()
    case.weight = torch.where(exact.isnan(), 0, exact).repeat(16, INPUTS // 256)
    for column in (0, 1, 130, 255, 256 + 77):  # one weight at a time, the smallest subnormal one included
        case.x = torch.zeros(1, INPUTS).bfloat16()
        case.x[0, column] = 1.0
        assert torch.equal(case.run(FEW)[0], case.weight[:, column]), column


# Each epilogue with one of the plans, as for bf16. FP8 changes the operands and scales a sum, whatever comes after it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "epilogue"),
    [(ALONE, Epilogue.PLAIN), (ALONE, Epilogue.GLU), (CLUSTER, Epilogue.RESIDUAL), (CLUSTER, Epilogue.BIAS)],
)
def test_many_rows_have_the_bits_of_few(plan: Tiled, epilogue: Epilogue, folder: Path) -> None:
    case = Case(37, Product(64, INPUTS, epilogue, norm=epilogue != Epilogue.RESIDUAL, fp8=True), folder)
    together = case.run(plan)
    assert_same_roundings(together, case.reference(), flips=0.02)
    for rows in (slice(0, 1), slice(3, 11), slice(21, 37)):
        assert torch.equal(case.run(FEW, rows), together[rows])


@pytest.mark.slow
@pytest.mark.parametrize("plan", [FEW, ALONE, CLUSTER], ids=["few", "alone", "cluster"])
def test_the_order_of_threads_does_not_matter(plan: Few | Tiled, folder: Path) -> None:
    case = Case(11, Product(64, INPUTS, Epilogue.GLU, norm=True, fp8=True), folder)
    assert torch.equal(case.run(plan, seed=2), case.run(plan))
