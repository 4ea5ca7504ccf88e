"""Matrix products of the published shapes: which kernel, with which tiles, for how many rows.

`linear_few.cu` for up to 16 rows; above, `linear_many.cu` (mma) or `linear_wide.cu` (wgmma), whichever is faster. The
formula and the order of the sums are in `linear.cuh`. The order depends on the number of inputs alone, so all plans of
a shape give a row the same bits.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left
from dataclasses import dataclass
from enum import IntEnum

from oscine.kernels.cuda.program import Launch, Program

FEW_ROWS = 16  # of linear_few

# Inputs -> segments: the warps of a block of linear_few, and so the order of the sums.
SEGMENTS = {1024: 8, 2048: 16, 3072: 8, 6144: 16}


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
        """Of one weight."""
        return 1 if self.fp8 else 2


@dataclass(frozen=True, slots=True)
class Few:
    tiles: int  # of 8 weight rows, per block


@dataclass(frozen=True, slots=True)
class Many:
    rows: int  # of a tile
    columns: int  # weight rows of a tile
    row_warps: int
    column_warps: int
    cluster: int  # blocks that share a tile: 1, or 4 with a quarter of K each
    stages: int


@dataclass(frozen=True, slots=True)
class Wide:
    rows: int  # of a tile
    warpgroups: int  # 64 weight rows each
    cluster: int  # as of Many
    ring: int  # stages of weights in registers
    x_stages: int

    @property
    def columns(self) -> int:
        return self.warpgroups * 64


Plan = Few | Many | Wide

# (outputs, inputs, GLU) -> plans for up to 8 and up to 16 rows. The tiles are those that were best for prototypes of
# the kernels on an H200, except for 2048 x 6144: there, 16 weight rows per block are a single wave of blocks.
_FEW = {
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
}

# Warps of linear_many by the size of a tile, (rows, weight rows): 16 x 16 to 64 x 32 per warp.
_WARPS = {
    (32, 32): (2, 2),
    (32, 64): (2, 2),
    (32, 128): (2, 4),
    (64, 32): (2, 2),
    (64, 64): (2, 2),
    (64, 128): (2, 4),
    (128, 32): (4, 2),
    (128, 64): (4, 2),
    (128, 128): (2, 4),
}
_STAGE_COLUMNS = 64  # of K
_MAX_STAGES = 8
_MIN_STAGES = 3
_SHARED_BYTES = 112 << 10  # of a block, if possible: the next kernel's blocks fit beside it
_X_STAGES = 6  # of Wide
_TABLE_ROWS = (32, 64, 128)  # and more


def many_plan(rows: int, columns: int, cluster: int, weight_bytes: int = 2) -> Many:
    room = _SHARED_BYTES - (0 if cluster > 1 else _sum_bytes(rows, columns))
    stages = max(_MIN_STAGES, min(_MAX_STAGES, room // _stage_bytes(rows, columns, weight_bytes)))
    return Many(rows, columns, *_WARPS[rows, columns], cluster, stages)


def _stage_bytes(rows: int, columns: int, weight_bytes: int) -> int:
    return (rows * 2 + columns * weight_bytes) * _STAGE_COLUMNS


def _sum_bytes(rows: int, columns: int) -> int:
    return rows * (columns + 8) * 4


def many_plans(product: Product, rows: int) -> list[Many]:
    tile_rows = 32 if rows <= 32 else 64 if rows <= 64 else 128
    return [
        many_plan(tile_rows, columns, cluster, product.weight_bytes)
        for columns in (32, 64, 128)
        for cluster in (1, 4)
        if (tile_rows, columns) in _WARPS and product.outputs * product.columns_per_output % columns == 0
    ]


def wide_plans(product: Product, rows: int) -> list[Wide]:
    tile_rows = (16, 32) if rows <= 32 else (32, 64) if rows <= 64 else (64, 128)
    return [
        Wide(tile, warpgroups, cluster, ring, _X_STAGES)
        for tile in tile_rows
        # Sums of 128 rows take half of the registers that a thread can have, and only one block has so many.
        for warpgroups in ((2,) if tile == 128 else (1, 2))
        for cluster in (1, 4)
        for ring in _rings(tile, product.inputs, cluster)
        if product.outputs * product.columns_per_output % (warpgroups * 64) == 0
    ]


def _rings(tile_rows: int, inputs: int, cluster: int) -> tuple[int, ...]:
    """Sizes that divide a quarter of K and fit into the registers."""
    if tile_rows == 128:
        return (2,)
    if inputs == 2048 and tile_rows <= 32 and cluster == 4:
        return (4, 8)  # all weights of a block
    return (4, 6) if inputs in (3072, 6144) else (4,)


def _wide(rows: int, warpgroups: int, cluster: int, ring: int) -> Wide:
    return Wide(rows, warpgroups, cluster, ring, _X_STAGES)


# (outputs, inputs, GLU) -> plans for up to 32, 64 and 128 rows, and for more: the fastest of a sweep on an H200
# (`python -m benchmarks.cuda_chain --sections sweep`).
_MORE: dict[tuple[int, int, bool], tuple[Many | Wide, ...]] = {
    # Layers of width 1024, then their heads; the talker of 1.7B.
    (4096, 1024, False): (many_plan(32, 128, 4), _wide(32, 2, 1, 4), _wide(64, 2, 1, 4), _wide(64, 2, 1, 4)),
    (1024, 2048, False): (_wide(32, 1, 4, 8), _wide(32, 1, 4, 8), _wide(64, 2, 4, 4), _wide(128, 2, 4, 2)),
    (3072, 1024, True): (many_plan(32, 128, 4), many_plan(64, 32, 1), _wide(64, 2, 1, 4), _wide(128, 2, 1, 2)),
    (1024, 3072, False): (many_plan(32, 64, 4), _wide(32, 2, 4, 4), _wide(64, 2, 4, 6), _wide(128, 2, 4, 2)),
    (2048, 1024, False): (_wide(32, 1, 4, 4), _wide(64, 2, 4, 4), _wide(128, 2, 4, 2), _wide(64, 2, 1, 4)),
    (3072, 1024, False): (_wide(32, 1, 4, 4), _wide(64, 2, 4, 4), _wide(128, 2, 4, 2), _wide(64, 2, 1, 4)),
    (4096, 2048, False): (many_plan(32, 128, 4), _wide(64, 2, 4, 4), _wide(64, 2, 1, 4), _wide(64, 2, 1, 4)),
    (2048, 2048, False): (_wide(32, 1, 4, 8), _wide(64, 2, 4, 4), _wide(128, 2, 4, 2), _wide(64, 2, 1, 4)),
    (6144, 2048, True): (many_plan(32, 32, 1), _wide(64, 2, 1, 4), _wide(128, 2, 1, 2), _wide(64, 2, 1, 4)),
    (2048, 6144, False): (many_plan(32, 32, 4), _wide(64, 2, 4, 6), _wide(128, 2, 4, 2), _wide(64, 2, 4, 6)),
    (3072, 2048, False): (_wide(32, 2, 4, 8), _wide(64, 2, 4, 4), _wide(128, 2, 4, 2), _wide(64, 2, 1, 4)),
}


def supports(product: Product) -> bool:
    return (product.outputs, product.inputs, product.epilogue == Epilogue.GLU) in _FEW


def choose_plan(product: Product, rows: int) -> Plan:
    assert supports(product), f"no plan for {product}"
    shape = (product.outputs, product.inputs, product.epilogue == Epilogue.GLU)
    if rows <= FEW_ROWS:
        return _FEW[shape][0 if rows <= 8 else 1]
    plan = _MORE[shape][bisect_left(_TABLE_ROWS, rows)]
    if isinstance(plan, Many):  # more stages of FP8 weights fit
        return many_plan(plan.rows, plan.columns, plan.cluster, product.weight_bytes)
    return plan


def linear_launch(product: Product, rows: int, plan: Plan | None = None, segments: int | None = None) -> Launch:
    plan = plan or choose_plan(product, rows)
    segments = segments or SEGMENTS[product.inputs]
    if isinstance(plan, Few):
        return _few_launch(product, rows, plan, segments)
    assert not product.norm, "many rows are normed by rms_norm"
    outputs = plan.columns // product.columns_per_output
    assert product.outputs % outputs == 0 and product.inputs % (segments * 64) == 0, (product, plan)
    defines = {
        "INPUTS": product.inputs,
        "SEGMENTS": segments,
        "EPILOGUE": int(product.epilogue),
        "FP8": int(product.fp8),
    }
    grid = (product.outputs // outputs * plan.cluster, -(-rows // plan.rows), 1)
    if isinstance(plan, Wide):
        return _wide_launch(plan, defines, grid)
    return _many_launch(plan, defines, grid, product.weight_bytes)


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


def _many_launch(plan: Many, defines: dict[str, int], grid: tuple[int, int, int], weight_bytes: int) -> Launch:
    program = Program.of(
        "linear_many",
        **defines,
        ROWS=plan.rows,
        COLUMNS=plan.columns,
        ROW_WARPS=plan.row_warps,
        COLUMN_WARPS=plan.column_warps,
        CLUSTER=plan.cluster,
        STAGES=plan.stages,
    )
    stages_bytes = plan.stages * _stage_bytes(plan.rows, plan.columns, weight_bytes)
    sum_bytes = _sum_bytes(plan.rows, plan.columns)
    # A cluster's sums take the place of the stages.
    shared_bytes = max(stages_bytes, sum_bytes) if plan.cluster > 1 else stages_bytes + sum_bytes
    return Launch(program, grid, plan.row_warps * plan.column_warps * 32, shared_bytes, plan.cluster)


def _wide_launch(plan: Wide, defines: dict[str, int], grid: tuple[int, int, int]) -> Launch:
    program = Program.of(
        "linear_wide",
        **defines,
        ROWS=plan.rows,
        WARPGROUPS=plan.warpgroups,
        CLUSTER=plan.cluster,
        RING=plan.ring,
        X_STAGES=plan.x_stages,
    )
    stages_bytes, sum_bytes = plan.x_stages * plan.rows * _STAGE_COLUMNS * 2, plan.rows * (plan.columns + 4) * 4
    shared_bytes = max(stages_bytes, sum_bytes) if plan.cluster > 1 else stages_bytes + sum_bytes
    return Launch(program, grid, (plan.warpgroups + 1) * 128, shared_bytes, plan.cluster)
