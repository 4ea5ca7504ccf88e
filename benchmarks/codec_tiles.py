"""Tiles that may be faster than the current ones, by the shape of a convolution and its number of columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton

from oscine.kernels.conv_tiles import Shape, Tile, UnitTile
from oscine.kernels.primitives import BLOCK_BYTES

TABLE_ROWS = (1, 8, 32, 128)  # of the tiles in kernels/conv_tiles.py
GAIN = 0.98  # a tile replaces the current one if it is faster than this share of its time
_MULTIPROCESSORS = 132
_BLOCK_BYTES = BLOCK_BYTES[90]
_MAX_WASTE = 1.35  # computed outputs over outputs
_SPLITS = (1, 2, 4, 8)
_MAX_CANDIDATES = 12  # of many columns: those with the best estimates
_EFFICIENCY = {32: 0.3, 64: 0.45, 128: 0.65, 256: 0.8}  # share of the tensor cores' peak, by outputs of a block
_PEAK_FLOPS_PER_US = 6e6  # of a multiprocessor
_SPLIT_US = 1.5
_MIN_PROGRAMS, _MAX_PROGRAMS = 20, 4000  # of a residual unit
# Depth, warps, stages and registers by block of rows and outputs.
_WIDE: dict[tuple[int, int], tuple[tuple[Any, ...], ...]] = {
    (64, 32): ((64, 4, 4), (128, 4, 4)),
    (64, 64): ((64, 4, 4), (64, 4, 6), (128, 4, 4)),
    (64, 128): ((64, 4, 4), (64, 4, 5), (128, 4, 3)),
    (128, 64): ((64, 4, 4), (64, 4, 3, 128), (64, 8, 4), (128, 4, 3)),
    (128, 128): ((64, 8, 3), (64, 8, 3, 128), (64, 8, 4), (128, 8, 3)),
    (64, 256): ((64, 4, 3), (64, 4, 4)),
    (128, 256): ((64, 8, 3), (64, 8, 4)),
    (256, 64): ((64, 8, 4),),
    (256, 128): ((64, 8, 3), (64, 8, 4)),
}
# Outputs that are no multiple of a power of two: a block and an extra one.
_EXTRA = {96: (64, 32), 192: (128, 64), 288: (256, 32)}


def candidates(shape: Shape, columns: int, *, may_split: bool) -> list[Tile]:
    """Distinct tiles that fit on an H200. `columns`: of all rows."""
    if columns <= 32:
        found = dict.fromkeys(_few_columns(shape, columns, may_split))
        return [tile for tile in found if _loaded_bytes(tile) <= _BLOCK_BYTES]
    many = dict.fromkeys(
        tile for tile in _many_columns(shape, columns, may_split) if _loaded_bytes(tile) <= _BLOCK_BYTES
    )
    return sorted(many, key=lambda tile: _estimate_us(tile, shape, columns))[:_MAX_CANDIDATES]


def _estimate_us(tile: Tile, shape: Shape, columns: int) -> float:
    """The time of the busiest multiprocessor, if memory is no limit."""
    taps, inputs, outputs = shape
    across = 1 if tile.extra else triton.cdiv(outputs, tile.outputs)
    rounds = triton.cdiv(across * triton.cdiv(columns, tile.rows) * tile.splits, _MULTIPROCESSORS)
    flops = 2 * tile.rows * (tile.outputs + tile.extra) * taps * inputs / tile.splits
    taller = 1.0 + 0.15 * (tile.rows // 128)
    speed = _PEAK_FLOPS_PER_US * _EFFICIENCY[tile.outputs] * taller
    return float(rounds * flops / speed + (tile.splits > 1) * _SPLIT_US)


def _loaded_bytes(tile: Tile) -> int:
    return (tile.stages - 1) * (tile.rows + tile.outputs + tile.extra) * tile.depth * 2


def _few_columns(shape: Shape, columns: int, may_split: bool) -> Iterator[Tile]:
    """The weights are read once: as many programs as read at full speed, and few steps for each."""
    taps, inputs, outputs = shape
    rows = 16 if columns <= 16 else 32
    for across in (16, 32, 64):
        for splits in _SPLITS if may_split else (1,):
            programs = triton.cdiv(outputs, across) * splits
            depth_each = taps * inputs // splits
            enough = 32 <= programs <= 400 if splits == 1 else 64 <= programs <= 300
            if not enough or depth_each < 256 or inputs % 128:
                continue
            steps = depth_each // 128
            yield Tile(rows, across, 0, 128, splits, 4, 4)
            if inputs % 256 == 0:
                yield Tile(rows, across, 0, 256, splits, 4, min(5, steps // 2 + 1))
            if steps <= 8 and splits == 1:
                yield Tile(rows, across, 0, 128, splits, 2, min(9, steps + 1))
            if steps >= 4:
                yield Tile(rows, across, 0, 128, splits, 4, min(9, steps + 1))  # all loads in flight, or many


def _many_columns(shape: Shape, columns: int, may_split: bool) -> Iterator[Tile]:
    taps, inputs, outputs = shape
    for (rows, across), options in _WIDE.items():
        programs = triton.cdiv(outputs, across) * triton.cdiv(columns, rows)
        wasted = programs * across * rows > _MAX_WASTE * outputs * max(columns, 64)
        if wasted or programs > 64 * _MULTIPROCESSORS:
            continue
        for splits in _SPLITS if may_split else (1,):
            full = programs * splits
            if splits > 1 and (full > 3 * _MULTIPROCESSORS or taps * inputs // splits < 256):
                continue
            if may_split and full < 0.6 * _MULTIPROCESSORS and taps * inputs // (2 * splits) >= 256:
                continue  # more splits fill more multiprocessors
            for depth, warps, stages, *registers in options:
                if inputs % depth == 0:
                    yield Tile(rows, across, 0, depth, splits, warps, stages, *registers)
                elif depth == 64 and inputs % 32 == 0:
                    yield Tile(rows, across, 0, 32, splits, warps, stages + 2, *registers)
    if outputs in _EXTRA and columns >= 2048:
        yield from _extra_columns(inputs, outputs)
    if taps == 1 and inputs < 128 <= columns:  # one step, with a mask
        for rows, warps in ((32, 4), (64, 4), (128, 8)):
            yield Tile(rows, 128, 0, 128, 1, warps, 2)


def _extra_columns(inputs: int, outputs: int) -> Iterator[Tile]:
    across, extra = _EXTRA[outputs]
    depths = (64,) if inputs % 64 == 0 else (32,)
    for rows, warps in ((64, 4), (128, 4), (128, 8), (256, 8)):
        if rows * (across + extra) > 160 * 32 * warps:
            continue  # the sums would not fit into the registers
        for depth in depths:
            for stages in (3, 4) if depth == 64 else (4, 6):
                yield Tile(rows, across, extra, depth, 1, warps, stages)
                if (rows, warps, stages) == (128, 4, 4):
                    yield Tile(rows, across, extra, depth, 1, warps, stages, 160)


# Of residual units. Compiled for an H200, only (64, 32, 32, 4, 4, 160) spills registers: 8 bytes.
_UNITS: dict[int, tuple[UnitTile, ...]] = {
    channels: tuple(UnitTile(*tile) for tile in tiles)
    for channels, tiles in {
        192: (
            *((16, 64, 64, 4, 5), (16, 64, 64, 8, 5), (32, 64, 64, 4, 4), (32, 64, 64, 8, 5)),
            *((64, 64, 64, 4, 3), (64, 64, 32, 4, 4), (64, 32, 32, 4, 6), (64, 64, 64, 8, 3), (64, 64, 64, 8, 4)),
            *((64, 64, 32, 8, 3), (64, 32, 32, 4, 4, 160)),
            *((128, 64, 64, 8, 3), (128, 64, 32, 8, 4), (128, 64, 64, 8, 5), (128, 32, 32, 8, 5)),
        ),
        96: (
            *((16, 32, 32, 4, 5), (16, 32, 32, 2, 6), (32, 32, 32, 4, 5), (32, 32, 32, 8, 5)),
            *((64, 32, 32, 4, 4), (64, 32, 32, 4, 6), (128, 32, 32, 8, 4), (256, 32, 32, 8, 5)),
            *((128, 32, 32, 4, 4), (128, 32, 32, 4, 4, 160), (128, 32, 32, 4, 3, 160), (128, 32, 32, 4, 5, 160)),
        ),
    }.items()
}


def unit_candidates(channels: int, columns: int) -> list[UnitTile]:
    """Small blocks only if columns are few, and large ones only if they are many."""
    return [
        tile
        for tile in _UNITS.get(channels, ())
        if _MIN_PROGRAMS * tile.columns <= columns <= _MAX_PROGRAMS * tile.columns
    ]
