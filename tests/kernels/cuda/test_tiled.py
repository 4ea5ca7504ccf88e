"""The product on wgmma, on a CPU: it has the bits of the product for few rows. What it reads is stored in tiles."""

from pathlib import Path

import numpy as np
import pytest
import torch

from oscine.kernels.cuda.launches import (
    CHECK_ROWS,
    CHECK_WEIGHT_ROWS,
    CheckArguments,
    NormArguments,
    check_inputs,
    check_launch,
    norm_launch,
)
from oscine.kernels.cuda.linear import Epilogue, Few, Product, Tiled
from oscine.kernels.cuda.program import TileArguments, from_tiles, in_tiles, tile_launch, tile_shape
from tests.kernels.cuda.emulation import bf16_bits, emulate, of_bits
from tests.kernels.cuda.test_linear import EPSILON, SEGMENTS_HERE, Case
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow

FEW = Few(2)
# Stages go round their ring in both.
ALONE, CLUSTER = Tiled(32, 1, 1, stages=3), Tiled(16, 2, 4, stages=3)


@pytest.mark.parametrize(
    ("plan", "epilogue"),
    [(ALONE, Epilogue.PLAIN), (ALONE, Epilogue.GLU), (CLUSTER, Epilogue.RESIDUAL), (CLUSTER, Epilogue.BIAS)],
)
def test_many_rows_have_the_bits_of_few(plan: Tiled, epilogue: Epilogue, folder: Path) -> None:
    case = Case(37, Product(64 * plan.warpgroups, 1024, epilogue, norm=epilogue == Epilogue.PLAIN), folder)
    together = case.run(plan)
    assert_same_roundings(together, case.reference(), flips=0.02)
    assert torch.equal(case.run(FEW, slice(21, 37)), together[21:37])


@pytest.mark.parametrize(("inputs", "segments", "stages"), [(1024, 8, 2), (2048, 16, 9), (3072, 8, 4)])
def test_a_quarter_has_more_or_fewer_stages_than_are_under_way(
    inputs: int, segments: int, stages: int, folder: Path
) -> None:
    case = Case(16, Product(64, inputs, Epilogue.RESIDUAL), folder, segments)
    assert torch.equal(case.run(Tiled(16, 1, 4, stages)), case.run(FEW))


def test_the_largest_tiles_have_the_bits_of_few_rows(folder: Path) -> None:
    case, last = Case(140, Product(64, 1024, Epilogue.GLU), folder), slice(124, 140)  # rows of both tiles
    assert torch.equal(case.run(Tiled(128, 2, 1, stages=4))[last], case.run(FEW, last))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_threads_and_the_time_of_products_do_not_matter(seed: int, folder: Path) -> None:
    case = Case(20, Product(64, 1024, Epilogue.RESIDUAL), folder)
    assert torch.equal(case.run(ALONE, seed=seed), case.run(ALONE))


@pytest.mark.parametrize("instructions", [1, 6])
def test_the_check_of_the_instructions_gives_both_the_same_operands(instructions: int, folder: Path) -> None:
    inputs, cases = check_inputs(instructions), 2
    x, weight = (
        torch.randn(cases, CHECK_ROWS, inputs).bfloat16(),
        torch.randn(cases, CHECK_WEIGHT_ROWS, inputs).bfloat16(),
    )
    operands = [bf16_bits(x), bf16_bits(weight)]
    sums = [np.full((cases, CHECK_ROWS, CHECK_WEIGHT_ROWS), np.nan, np.float32) for _ in range(2)]
    arguments = CheckArguments(*(array.ctypes.data for array in (*operands, *sums)))
    emulate(check_launch(instructions, cases), arguments, folder, late=operands)
    assert np.array_equal(sums[0], sums[1])
    # The first instruction of 32 columns takes columns 8 t .. 8 t + 3, the second the others.
    order = torch.arange(inputs).view(-1, 4, 2, 4).transpose(1, 2).flatten()[: instructions * 16]
    expected = x[:, :, order].double() @ weight[:, :, order].double().transpose(1, 2)
    assert np.allclose(sums[0], expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("rows", [1, 18])
def test_rows_are_normed_or_copied_into_tiles(rows: int, folder: Path) -> None:
    case = Case(rows, Product(64, 512), folder)
    x = bf16_bits(case.x)
    tiles = bf16_bits(torch.zeros(tile_shape(rows, 512)))
    copy = TileArguments(x.ctypes.data, tiles.ctypes.data, rows, 512, tiles[0].size)
    emulate(tile_launch(512, rows), copy, folder, late=[x])
    assert torch.equal(of_bits(tiles)[:, :rows], in_tiles(case.x)[:, :rows])
    assert torch.equal(from_tiles(of_bits(tiles), rows), case.x)

    scale = bf16_bits(case.scale)
    words = {"rows": rows, "x_stride": 512, "out_stride": tiles[0].size, "epsilon": EPSILON}
    norm = NormArguments(x=x.ctypes.data, scale=scale.ctypes.data, out=tiles.ctypes.data, **words)
    emulate(norm_launch(512, rows, tiles=True, segments=SEGMENTS_HERE), norm, folder, late=[x])
    assert torch.equal(from_tiles(of_bits(tiles), rows), of_bits(case.normed(x)))
