"""Plans of the published shapes: they fit the GPU, cover the output, and never change the order of sums."""

import itertools

import pytest

from oscine.kernels.cuda.launches import norm_launch
from oscine.kernels.cuda.linear import (
    FEW_ROWS,
    SEGMENTS,
    Epilogue,
    Few,
    Product,
    choose_plan,
    linear_launch,
    supports,
    tiled_plans,
)
from oscine.kernels.primitives import BLOCK_BYTES

ROWS = (1, 2, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256)
SHAPES = (
    *((4096, width, Epilogue.PLAIN) for width in (1024, 2048)),
    *((width, 2048, Epilogue.RESIDUAL) for width in (1024, 2048)),
    *((3 * width, width, Epilogue.GLU) for width in (1024, 2048)),
    *((width, 3 * width, Epilogue.RESIDUAL) for width in (1024, 2048)),
    *((3072, width, Epilogue.PLAIN) for width in (1024, 2048)),
    (2048, 1024, Epilogue.PLAIN),
    (1024, 2048, Epilogue.BIAS),
    (3072, 512, Epilogue.PLAIN),
    (512, 1024, Epilogue.RESIDUAL),
    (1024, 512, Epilogue.GLU),
)


@pytest.mark.parametrize(("outputs", "inputs", "epilogue"), SHAPES)
def test_published_shapes_have_plans_that_fit(outputs: int, inputs: int, epilogue: Epilogue) -> None:
    for rows, norm in itertools.product(ROWS, (False, True)):
        product = Product(outputs, inputs, epilogue, norm=norm and rows <= FEW_ROWS and inputs <= 2048)
        assert supports(product)
        launch = linear_launch(product, rows)
        defines = dict(launch.program.defines)
        assert launch.threads <= 1024 and launch.shared_bytes <= BLOCK_BYTES[90], launch
        assert launch.grid[0] % launch.cluster == 0
        # Every output of every row belongs to one block.
        columns = defines.get("WARPGROUPS", 0) * 64 or defines["TILES"] * 8
        assert launch.grid[0] // launch.cluster * columns == outputs * product.columns_per_output
        assert launch.grid[1] * defines["ROWS"] >= rows > (launch.grid[1] - 1) * defines["ROWS"]
        assert defines["SEGMENTS"] == SEGMENTS[inputs], "the order of sums depends on the inputs alone"


def test_every_plan_of_a_sweep_fits() -> None:
    for (outputs, inputs, epilogue), rows in itertools.product(SHAPES, (17, 64, 128)):
        product = Product(outputs, inputs, epilogue)
        for plan in tiled_plans(product, rows):
            launch = linear_launch(product, rows, plan)
            assert (launch.shared_bytes + 1024) * plan.blocks_at_once <= BLOCK_BYTES[90] + 1024, (plan, launch)
            assert launch.threads <= 384
            assert launch.grid[0] // launch.cluster * plan.columns == outputs * product.columns_per_output
            assert launch.grid[1] * plan.rows >= rows > (launch.grid[1] - 1) * plan.rows


def test_the_plans_of_more_rows_are_among_those_that_a_sweep_tries() -> None:
    for (outputs, inputs, epilogue), rows in itertools.product(SHAPES, (17, 32, 33, 64, 65, 128, 129, 512)):
        product = Product(outputs, inputs, epilogue)
        assert choose_plan(product, rows) in tiled_plans(product, rows), (product, rows)


def test_few_rows_keep_their_weights_in_registers() -> None:
    """A thread's share of the weights leaves a quarter of its registers for the rest, with full blocks."""
    for outputs, inputs, epilogue in SHAPES:
        for rows in (8, 16):
            plan = choose_plan(Product(outputs, inputs, epilogue), rows)
            assert isinstance(plan, Few)
            registers = plan.tiles * inputs // SEGMENTS[inputs] // 32 * 4
            assert registers <= 0.75 * min(255, 65536 // (SEGMENTS[inputs] * 32))


def test_other_shapes_are_not_supported() -> None:
    assert not supports(Product(96, 64))
    with pytest.raises(AssertionError, match="no plan"):
        choose_plan(Product(96, 64), 1)


def test_a_norm_has_the_segments_of_the_product_that_follows() -> None:
    for width, outputs in ((512, 3072), (1024, 4096), (2048, 4096)):
        norm, product = norm_launch(width, 300, tiles=True), linear_launch(Product(outputs, width), 300)
        assert dict(norm.program.defines)["SEGMENTS"] == dict(product.program.defines)["SEGMENTS"]
        assert norm.grid[0] * 4 >= 300
