"""Chooses the kernel and its tiles for matrix products of the published shapes, by the number of rows.

`linear_few.cu` has up to 16 rows, `linear_tiled.cu` more. `linear.cuh` has the formula and the order of the sums. The
order depends only on the number of inputs, so all plans of a shape give a row the same bits.
"""

from __future__ import annotations

import ctypes
import itertools
from bisect import bisect_left
from dataclasses import dataclass
from enum import IntEnum

from oscine.kernels.cuda.program import Launch, Program

FEW_ROWS = 16  # of linear_few

# Inputs -> segments: the warps of a block of linear_few, and so the order of the sums.
SEGMENTS = {512: 8, 1024: 8, 2048: 16, 3072: 8, 6144: 16}


class Epilogue(IntEnum):  # as in linear.cuh
    PLAIN = 0
    RESIDUAL = 1
    GLU = 2
    BIAS = 3


class LinearArguments(ctypes.Structure):  # `Arguments` in linear.cuh
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "weight", "out", "residual", "bias", "scale", "weight_scale")),
        *((name, ctypes.c_int) for name in ("rows", "outputs", "x_stride", "out_stride", "residual_stride")),
        ("epsilon", ctypes.c_float),
    ]


@dataclass(frozen=True, slots=True)
class Product:
    """The shape of a product. `norm`: x is normed first. `fp8`: the weights are e4m3 with a scale per row."""

    outputs: int
    inputs: int
    epilogue: Epilogue = Epilogue.PLAIN
    norm: bool = False
    fp8: bool = False

    @property
    def columns_per_output(self) -> int:
        return 2 if self.epilogue == Epilogue.GLU else 1

    @property
    def weight_bytes(self) -> int:
        """The size of one weight in bytes."""
        return 1 if self.fp8 else 2


@dataclass(frozen=True, slots=True)
class Few:
    tiles: int  # of 8 weight rows, per block


@dataclass(frozen=True, slots=True)
class Tiled:
    """A plan whose x is in tiles (`tiles.cuh`)."""

    rows: int  # of a tile
    warpgroups: int  # 64 weight rows each
    cluster: int  # blocks that share a tile: 1, or 4 with a quarter of K each
    stages: int  # of 64 columns in flight
    blocks_at_once: int = 1  # on a multiprocessor

    @property
    def columns(self) -> int:
        """The number of weight rows of a tile."""
        return self.warpgroups * 64

    def shared_bytes(self, weight_bytes: int) -> int:
        """Stages; the sums, in the same place where they are stored once; a barrier for each stage."""
        stage_bytes = (self.rows * 2 + self.columns * weight_bytes) * _STAGE_COLUMNS
        sum_bytes = self.rows * (self.columns + 4) * 4
        apart = self.cluster == 1 and self.rows > 64
        held = self.stages * stage_bytes + sum_bytes if apart else max(self.stages * stage_bytes, sum_bytes)
        return held + self.stages * 8


Plan = Few | Tiled

# (outputs, inputs, GLU) -> plans for up to 8 and up to 16 rows. The tiles are those that were best for prototypes of
# the kernels on an H200, except for 2048 x 6144: there, 16 weight rows per block are a single wave of blocks.
FEW_PLANS = {
    # Layers of width 1024: the predictor, and the talker of 0.6B; then their heads.
    (4096, 1024, False): (Few(4), Few(4)),
    (1024, 2048, False): (Few(1), Few(1)),
    (3072, 1024, True): (Few(4), Few(4)),
    (1024, 3072, False): (Few(1), Few(1)),
    (2048, 1024, False): (Few(4), Few(4)),
    (3072, 1024, False): (Few(4), Few(4)),
    # The talker of 1.7B.
    (4096, 2048, False): (Few(2), Few(2)),
    (2048, 2048, False): (Few(1), Few(1)),
    (6144, 2048, True): (Few(2), Few(2)),
    (2048, 6144, False): (Few(2), Few(1)),
    (3072, 2048, False): (Few(2), Few(2)),
    # The codec's stack: from a sweep.
    (3072, 512, False): (Few(3), Few(3)),
    (512, 1024, False): (Few(1), Few(1)),
    (1024, 512, True): (Few(4), Few(4)),
}

_STAGE_COLUMNS = 64  # of K
_MAX_STAGES = 12
_SHARED_BYTES = 227 << 10  # of a multiprocessor; a block takes 1 KB more than it asks for
_TABLE_ROWS = (32, 64, 128, 256)  # and more


def reads_tiles(rows: int) -> bool:
    """Whether a product of so many rows reads x in tiles."""
    return rows > FEW_ROWS


def tiled_plans(product: Product, rows: int) -> list[Tiled]:
    """Returns all plans that can be the fastest for up to so many rows. Tiles of 128 rows need segments of two
    stages."""
    tiles: tuple[int, ...] = (32,) if rows <= 32 else (32, 64) if rows <= 64 else (64, 128)
    if product.inputs // SEGMENTS[product.inputs] < 2 * _STAGE_COLUMNS:
        tiles = tuple(tile for tile in tiles if tile <= 64)
    return [
        Tiled(tile, warpgroups, cluster, stages, blocks_at_once)
        for tile, warpgroups, cluster in itertools.product(tiles, (1, 2), (1, 4))
        for blocks_at_once in ((1, 2) if warpgroups == 1 else (1,))
        if product.outputs * product.columns_per_output % (warpgroups * 64) == 0
        for stages in _stage_counts(tile, warpgroups, cluster, blocks_at_once, product.weight_bytes)
    ]


def _stage_counts(rows: int, warpgroups: int, cluster: int, blocks_at_once: int, weight_bytes: int) -> list[int]:
    """Returns the numbers of stages to try: as many as fit and, for one block, half of them, so that the next kernel's
    blocks fit too."""
    room = _SHARED_BYTES // blocks_at_once - 1024
    most = max(
        n for n in range(1, _MAX_STAGES + 1) if Tiled(rows, warpgroups, cluster, n).shared_bytes(weight_bytes) <= room
    )
    return [most] if blocks_at_once == 2 else sorted({most, max(3, most // 2)})


# (outputs, inputs, GLU) -> plans for up to 32, 64, 128 and 256 rows, and for more: the fastest of a sweep on an H200
# (`python -m benchmarks.cuda_chain --sections sweep`).
# fmt: off
TILED_PLANS: dict[tuple[int, int, bool], tuple[Tiled, ...]] = {
    # Layers of width 1024, then their heads (that of 2048 was measured); the talker of 1.7B.
    (4096, 1024, False): (
        Tiled(32, 1, 1, 12), Tiled(64, 1, 1, 12), Tiled(64, 1, 1, 6), Tiled(64, 1, 1, 7, 2), Tiled(64, 1, 1, 7, 2),
    ),
    (1024, 2048, False): (
        Tiled(32, 1, 4, 9, 2), Tiled(32, 1, 4, 9, 2), Tiled(64, 1, 4, 7, 2), Tiled(128, 2, 4, 7), Tiled(128, 2, 4, 7),
    ),
    (3072, 1024, True): (
        Tiled(32, 1, 1, 6), Tiled(64, 1, 1, 6), Tiled(64, 1, 1, 7, 2), Tiled(128, 2, 1, 4), Tiled(128, 2, 1, 4),
    ),
    (1024, 3072, False): (
        Tiled(32, 1, 4, 12), Tiled(64, 1, 4, 12), Tiled(128, 1, 4, 9), Tiled(128, 2, 4, 7), Tiled(128, 2, 4, 7),
    ),
    (2048, 1024, False): (
        Tiled(32, 1, 4, 9, 2), Tiled(32, 1, 1, 12), Tiled(64, 1, 1, 12), Tiled(64, 1, 1, 6), Tiled(64, 1, 1, 6),
    ),
    (3072, 1024, False): (
        Tiled(32, 1, 4, 9, 2), Tiled(32, 1, 1, 12), Tiled(64, 1, 1, 12), Tiled(64, 1, 1, 6), Tiled(64, 1, 1, 6),
    ),
    (4096, 2048, False): (
        Tiled(32, 1, 1, 12), Tiled(64, 1, 1, 12), Tiled(64, 1, 1, 6), Tiled(64, 2, 1, 9), Tiled(128, 2, 1, 4),
    ),
    (2048, 2048, False): (
        Tiled(32, 1, 4, 9, 2), Tiled(64, 2, 4, 9), Tiled(128, 1, 4, 4, 2), Tiled(64, 1, 1, 6), Tiled(64, 2, 1, 9),
    ),
    (6144, 2048, True): (
        Tiled(32, 1, 1, 9, 2), Tiled(64, 2, 1, 9), Tiled(128, 2, 1, 4), Tiled(128, 1, 1, 7), Tiled(128, 2, 1, 4),
    ),
    (2048, 6144, False): (
        Tiled(32, 1, 4, 9, 2), Tiled(64, 2, 4, 9), Tiled(128, 2, 4, 7), Tiled(64, 1, 1, 6), Tiled(64, 2, 1, 9),
    ),
    (3072, 2048, False): (
        Tiled(32, 2, 4, 5), Tiled(64, 1, 4, 7, 2), Tiled(64, 1, 1, 6), Tiled(64, 2, 1, 9), Tiled(128, 2, 1, 4),
    ),
    # The codec's stack.
    (3072, 512, False): (
        Tiled(32, 1, 1, 9, 2), Tiled(32, 1, 1, 6), Tiled(64, 1, 1, 6), Tiled(64, 1, 1, 7, 2), Tiled(64, 1, 1, 7, 2),
    ),
    (512, 1024, False): (
        Tiled(32, 1, 4, 6), Tiled(32, 1, 4, 6), Tiled(64, 1, 4, 6), Tiled(64, 1, 4, 7, 2), Tiled(64, 1, 4, 7, 2),
    ),
    (1024, 512, True): (
        Tiled(32, 1, 1, 9, 2), Tiled(32, 1, 1, 12), Tiled(64, 1, 1, 12), Tiled(64, 1, 1, 12), Tiled(64, 1, 1, 12),
    ),
}
# fmt: on


def supports(product: Product) -> bool:
    return (product.outputs, product.inputs, product.epilogue == Epilogue.GLU) in FEW_PLANS


def choose_plan(product: Product, rows: int) -> Plan:
    assert supports(product), f"no plan for {product}"
    shape = (product.outputs, product.inputs, product.epilogue == Epilogue.GLU)
    if rows <= FEW_ROWS:
        return FEW_PLANS[shape][0 if rows <= 8 else 1]
    return TILED_PLANS[shape][bisect_left(_TABLE_ROWS, rows)]


def linear_launch(product: Product, rows: int, plan: Plan | None = None, segments: int | None = None) -> Launch:
    plan = plan or choose_plan(product, rows)
    segments = segments or SEGMENTS[product.inputs]
    if isinstance(plan, Few):
        return _few_launch(product, rows, plan, segments)
    return _tiled_launch(product, rows, plan, segments)


def _few_launch(product: Product, rows: int, plan: Few, segments: int) -> Launch:
    assert rows <= FEW_ROWS, rows
    tile_rows, columns, segment = 8 if rows <= 8 else 16, plan.tiles * 8, product.inputs // segments
    outputs = columns // product.columns_per_output
    assert product.outputs % outputs == 0 and product.inputs % segments == 0, (product, plan)
    part = min(segment, 128)
    slots = min(segment // part, 3 if tile_rows == 8 else 2)
    ring = max(slots * rows * part * 2, rows * columns * 4)
    program = Program.of(
        "linear_few",
        INPUTS=product.inputs,
        SEGMENTS=segments,
        TILES=plan.tiles,
        ROWS=tile_rows,
        NORM=int(product.norm),
        EPILOGUE=int(product.epilogue),
        FP8=int(product.fp8),
    )
    shared_bytes = segments * (ring + tile_rows * 4) + (product.inputs * 2 if product.norm else 0)
    return Launch(program, (product.outputs // outputs, 1, 1), segments * 32, shared_bytes)


def _tiled_launch(product: Product, rows: int, plan: Tiled, segments: int) -> Launch:
    assert not product.norm, "many rows are normed by rms_norm"
    outputs = plan.columns // product.columns_per_output
    assert product.outputs % outputs == 0 and product.inputs % (segments * _STAGE_COLUMNS) == 0, (product, plan)
    program = Program.of(
        "linear_tiled",
        INPUTS=product.inputs,
        SEGMENTS=segments,
        EPILOGUE=int(product.epilogue),
        FP8=int(product.fp8),
        ROWS=plan.rows,
        WARPGROUPS=plan.warpgroups,
        CLUSTER=plan.cluster,
        STAGES=plan.stages,
        BLOCKS=plan.blocks_at_once,
    )
    grid = (product.outputs // outputs * plan.cluster, -(-rows // plan.rows), 1)
    return Launch(program, grid, (plan.warpgroups + 1) * 128, plan.shared_bytes(product.weight_bytes), plan.cluster)
