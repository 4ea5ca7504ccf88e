"""Chooses tile sizes of convolution launches (conv.py): tuned for the published shapes, by rule for others.

The order of a sum depends on the number of parts and their length (`span`), and with a norm on the depth. These are the
same for any number of rows; all else in a tile changes only the time.
"""

from __future__ import annotations

from typing import NamedTuple

import triton

Shape = tuple[int, int, int]  # taps, inputs, outputs


class Tile(NamedTuple):
    """The shape of one program's work."""

    rows: int
    outputs: int
    extra: int  # a second, narrower block of outputs: 96 channels are 64 + 32, and none is wasted
    depth: int  # input channels per step
    splits: int  # parts of a sum, of one program each
    warps: int
    stages: int
    registers: int = 0  # maximum per thread: fewer let more programs share a multiprocessor. 0: the compiler decides
    serial: bool = False  # one program adds up all parts

    def span(self, shape: Shape) -> int:
        """The number of columns of K in a part."""
        taps, inputs, _ = shape
        return triton.cdiv(taps * triton.cdiv(inputs, self.depth), self.splits) * self.depth

    @property
    def early(self) -> bool:
        """Whether bias, residual and snake are loaded before the sums: small blocks have registers for them."""
        return self.rows <= 64 and self.outputs <= 64 and not self.extra


# One tile each for 1, 8, 32 and 128 rows.
TILES: dict[Shape, tuple[Tile, Tile, Tile, Tile]] = {
    key: tuple(Tile(*tile) for tile in tiles)  # type: ignore[arg-type, misc]
    for key, tiles in {
        # The front half.
        (3, 512, 512): (  # pre_conv with the stack's input projection
            (16, 32, 0, 128, 4, 4, 4), (16, 32, 0, 128, 4, 4, 4), (32, 16, 0, 128, 4, 4, 4), (64, 32, 0, 64, 4, 4, 4)),
        (1, 512, 3072): (  # q, k, v
            (16, 32, 0, 128, 1, 4, 4), (16, 32, 0, 128, 1, 2, 5), (32, 32, 0, 128, 1, 4, 4), (64, 64, 0, 128, 1, 4, 3)),
        (1, 1024, 512): (  # attention's output, and down in the MLP
            (16, 32, 0, 256, 4, 4, 2), (16, 32, 0, 256, 4, 4, 2), (32, 16, 0, 256, 4, 4, 2), (64, 32, 0, 64, 4, 4, 4)),
        (1, 512, 2048): (  # gate and up in the MLP; the stack's output projection with the first upsampling
            (16, 32, 0, 128, 1, 4, 4), (16, 16, 0, 128, 1, 2, 5), (32, 16, 0, 128, 1, 2, 5), (64, 32, 0, 128, 1, 4, 4)),
        (1, 1024, 4096): (  # ConvNeXt up
            (16, 32, 0, 128, 1, 4, 4), (32, 32, 0, 256, 1, 4, 5), (64, 64, 0, 128, 1, 4, 4),
            (128, 128, 0, 64, 1, 8, 4)),
        (1, 4096, 1024): (  # ConvNeXt down
            (16, 32, 0, 128, 4, 4, 4), (32, 32, 0, 128, 4, 4, 4), (64, 64, 0, 128, 4, 4, 4), (64, 64, 0, 64, 4, 4, 4)),
        (1, 1024, 2048): (  # the second upsampling
            (16, 16, 0, 128, 1, 4, 5), (16, 32, 0, 128, 1, 4, 4), (32, 32, 0, 128, 1, 4, 4), (64, 64, 0, 64, 1, 4, 6)),
        # The vocoder.
        (7, 1024, 1536): (
            (16, 16, 0, 256, 4, 4, 4), (32, 32, 0, 128, 4, 4, 5), (64, 128, 0, 64, 4, 4, 5),
            (64, 128, 0, 64, 4, 4, 4)),
        (2, 1536, 6144): (
            (16, 16, 0, 256, 1, 4, 4), (32, 32, 0, 128, 1, 4, 5), (64, 32, 0, 128, 1, 4, 4),
            (128, 256, 0, 64, 1, 8, 3)),
        (7, 768, 768): (
            (32, 16, 0, 128, 2, 4, 5), (64, 32, 0, 64, 2, 4, 6), (64, 64, 0, 64, 2, 4, 4),
            (128, 128, 0, 64, 2, 8, 3, 0, True)),
        (1, 768, 768): (
            (16, 32, 0, 128, 1, 4, 4), (64, 32, 0, 128, 1, 4, 4), (64, 64, 0, 64, 1, 4, 4), (64, 128, 0, 64, 1, 4, 4)),
        (2, 768, 1920): (
            (16, 32, 0, 128, 1, 4, 4), (64, 64, 0, 128, 1, 4, 4), (128, 128, 0, 128, 1, 8, 3),
            (128, 256, 0, 64, 1, 8, 3)),
        (7, 384, 384): (
            (32, 16, 0, 128, 1, 4, 5), (64, 32, 0, 64, 1, 4, 6), (128, 128, 0, 64, 1, 8, 4),
            (256, 128, 0, 64, 1, 8, 3)),
        (1, 384, 384): (
            (32, 32, 0, 128, 1, 4, 4), (64, 64, 0, 64, 1, 4, 4), (128, 64, 0, 64, 1, 4, 4), (64, 128, 0, 64, 1, 4, 4)),
        (2, 384, 768): (
            (32, 32, 0, 128, 1, 4, 4), (64, 128, 0, 64, 1, 4, 4), (128, 256, 0, 64, 1, 8, 3),
            (128, 256, 0, 64, 1, 8, 3)),
        (7, 192, 192): (
            (32, 32, 0, 64, 1, 4, 5), (128, 64, 0, 64, 1, 4, 4), (128, 64, 0, 64, 1, 4, 4),
            (128, 128, 64, 64, 1, 8, 3)),
        (1, 192, 192): (
            (64, 32, 0, 64, 1, 4, 4), (64, 64, 0, 64, 1, 4, 4), (128, 64, 0, 64, 1, 4, 4), (64, 128, 64, 64, 1, 4, 3)),
        (2, 192, 288): (
            (64, 32, 0, 64, 1, 4, 4), (128, 128, 0, 64, 1, 8, 3), (256, 128, 0, 64, 1, 8, 3),
            (128, 256, 32, 64, 1, 8, 3)),
        (7, 96, 96): (
            (64, 32, 0, 32, 1, 4, 4), (128, 64, 32, 32, 1, 4, 4), (128, 64, 32, 32, 1, 4, 4),
            (128, 64, 32, 32, 1, 4, 4, 160)),
        (1, 96, 96): (
            (64, 32, 0, 32, 1, 4, 4), (64, 128, 0, 32, 1, 4, 4), (128, 64, 32, 32, 1, 4, 4),
            (128, 64, 0, 32, 1, 4, 4)),
    }.items()
}  # fmt: skip
_MAX_ROWS = (2, 15, 63)  # of the first, second and third tile
FULL_GPU = 132  # programs: one for each multiprocessor of an H200


def tuned_tile(shape: Shape, rows: int) -> Tile | None:
    tuned = TILES.get(shape)
    return tuned[sum(rows > limit for limit in _MAX_ROWS)] if tuned else None


def plain_tile(shape: Shape, columns: int, *, may_split: bool) -> Tile:
    """Returns the tile of a shape without tuning: block sizes by the total number of columns. Parts have at least four
    steps; each is a program of its own until there are enough tiles for the GPU."""
    taps, inputs, outputs = shape
    rows = 16 if columns <= 16 else 32 if columns <= 32 else 64 if columns < 2048 else 128
    across = min(32 if columns <= 32 else 64, max(16, triton.next_power_of_2(outputs)))
    depth = min(64, max(16, triton.next_power_of_2(inputs)))
    steps = taps * triton.cdiv(inputs, depth)
    tiles = triton.cdiv(columns, rows) * triton.cdiv(outputs, across)
    splits = 4 if may_split and steps >= 16 else 2 if may_split and steps >= 8 else 1
    return Tile(rows, across, 0, depth, splits, 4, 4, serial=splits > 1 and tiles >= FULL_GPU)


class UnitTile(NamedTuple):
    """The shape of one program's work on a residual unit (residual_unit.py), which computes all channels."""

    columns: int
    depth: int  # input channels per step of the first convolution
    outputs: int  # per step of the second one
    warps: int
    stages: int
    registers: int = 0  # as in Tile


# By channels, for 1, 8, 32 and 128 rows, tuned on an H200. None: two launches of conv.py.
UNITS: dict[int, tuple[UnitTile | None, UnitTile | None, UnitTile | None, UnitTile | None]] = {
    192: (None, None, UnitTile(64, 64, 64, 4, 3), UnitTile(64, 64, 64, 4, 3)),
    96: (None, UnitTile(64, 32, 32, 4, 4), UnitTile(128, 32, 32, 8, 4), UnitTile(128, 32, 32, 4, 4, 160)),
}


def unit_tile(channels: int, rows: int) -> UnitTile | None:
    tuned = UNITS.get(channels)
    return tuned[sum(rows > limit for limit in _MAX_ROWS)] if tuned else None
