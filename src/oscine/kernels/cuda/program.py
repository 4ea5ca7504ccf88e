"""A kernel with its constants, how it is launched, and the layout of tiles."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from oscine.kernels import padded_rows

SOURCES = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel. `name` is also its file, without the suffix; `defines` are its constants, sorted by name."""

    name: str
    defines: tuple[tuple[str, int], ...]

    @staticmethod
    def of(name: str, **defines: int) -> Program:
        return Program(name, tuple(sorted(defines.items())))

    @property
    def text(self) -> str:
        return _text(f"{self.name}.cu")


@dataclass(frozen=True, slots=True)
class Launch:
    """A program with its grid. `cluster` adjacent blocks share their memory. A programmatic launch may begin before its
    predecessor ends."""

    program: Program
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int = 0
    cluster: int = 1
    programmatic: bool = True


@cache
def _text(file: str) -> str:
    """Returns a file with its includes in place, each once, so that a compiler needs no other file."""
    seen: set[str] = set()

    def lines(name: str) -> list[str]:
        if name in seen:
            return []
        seen.add(name)
        found = []
        for line in (SOURCES / name).read_text(encoding="utf-8").splitlines():
            included = line.startswith('#include "')
            found += lines(line.split('"')[1]) if included else [line]
        return found

    return "\n".join(lines(file)) + "\n"


# --- The x of a product for many rows, in tiles: [columns / 64, rows, 64]; `tiles.cuh` says why and in which order.


WIDTH = 64  # columns of a tile
_WARPS = 4  # of a block of tile_rows; one row each


class TileArguments(ctypes.Structure):  # `Arguments` in tile_rows.cu
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "out")),
        *((name, ctypes.c_int) for name in ("rows", "x_stride", "out_stride")),
    ]


def tile_launch(width: int, rows: int) -> Launch:
    return Launch(Program.of("tile_rows", INPUTS=width), (-(-rows // _WARPS), 1, 1), _WARPS * 32)


def tile_shape(rows: int, columns: int) -> tuple[int, int, int]:
    return columns // WIDTH, padded_rows(rows), WIDTH


def tiles_of(buffer: Tensor, rows: int, columns: int) -> Tensor:
    """Returns a view of the buffer for tiles of so many rows."""
    return buffer.flatten()[: padded_rows(rows) * columns].view(tile_shape(rows, columns))


def in_tiles(x: Tensor) -> Tensor:
    """Converts [rows, columns] to tiles in PyTorch, as the kernels store them."""
    rows, columns = x.shape
    padded = x.new_zeros(padded_rows(rows), columns)
    padded[:rows] = x
    return _exchanged(_transposed(padded.view(-1, columns // WIDTH, WIDTH))).transpose(0, 1).contiguous()


def from_tiles(tiles: Tensor, rows: int) -> Tensor:
    return _transposed(_exchanged(tiles.transpose(0, 1)[:rows])).flatten(1)


def _transposed(x: Tensor) -> Tensor:
    """Transposes pairs of columns, 4 x 4 in each 32 columns. It is its own inverse."""
    return x.reshape(*x.shape[:-1], 2, 4, 4, 2).transpose(-3, -2).flatten(-4)


def _exchanged(x: Tensor) -> Tensor:
    """Exchanges pieces of 8 columns, by the row's place among eight: [rows, tiles, 64]. It is its own inverse."""
    pieces = x.reshape(*x.shape[:2], 8, 8)
    place = torch.arange(8, device=x.device)[None, :] ^ (torch.arange(len(x), device=x.device) % 8)[:, None]
    return pieces.gather(2, place[:, None, :, None].expand_as(pieces)).flatten(2)
