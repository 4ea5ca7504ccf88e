"""More rows than a tile of a product has, as 256 streams need: two tiles, the last one not full."""

from pathlib import Path

import pytest
import torch

from oscine.kernels.cuda.linear import Epilogue, Few, Many, Product, many_plan
from tests.kernels.cuda.test_linear import INPUTS, Case
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow

TILE_ROWS, ROWS = 128, 140


@pytest.mark.parametrize(
    ("epilogue", "plan"),
    [(Epilogue.RESIDUAL, many_plan(TILE_ROWS, 32, 4)), (Epilogue.GLU, many_plan(TILE_ROWS, 64, 1))],
    ids=["cluster", "alone"],
)
def test_rows_of_both_tiles_have_the_bits_of_few_rows(epilogue: Epilogue, plan: Many, tmp_path: Path) -> None:
    case = Case(ROWS, Product(32, INPUTS, epilogue, norm=epilogue == Epilogue.GLU), tmp_path)
    together = case.run(plan)
    assert_same_roundings(together, case.reference(), flips=0.015)
    last = slice(TILE_ROWS - 4, ROWS)
    assert torch.equal(case.run(Few(2), last), together[last])
