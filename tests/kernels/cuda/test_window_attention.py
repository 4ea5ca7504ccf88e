"""Attention of the codec's stack on a CPU: the CUDA kernel in the emulator, against the formula in plain PyTorch."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oscine.kernels.cuda.launches import WINDOW_DIM, WindowArguments, window_launch
from oscine.kernels.cuda.program import from_tiles, in_tiles
from tests.kernels.cuda.emulation import aligned, bf16_bits, emulate, of_bits
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow

HEADS, DIM = 2, WINDOW_DIM
WIDTH, SCALE = 3 * HEADS * DIM, DIM**-0.5


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[heads, dim] in fp32."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Window:
    """Slots before, at and after the first wrap of their ring. What no frame of a stream has written is NaN."""

    def __init__(self, window: int) -> None:
        self.window, self.slots = window, [4, 0, 2, 1, 3]
        self.positions = [0, 1, window - 1, window, 5 * window + 3]  # of the rows
        self.qkv = random(len(self.slots), WIDTH, seed=0)
        angles = torch.tensor(self.positions)[:, None] * 1e4 ** (-torch.arange(0, DIM, 2) / DIM)
        self.cos, self.sin = angles.cos(), angles.sin()
        self.keys, self.values = (random(len(self.slots), HEADS, window, DIM, seed=seed) for seed in (1, 2))
        for slot, position in zip(self.slots, self.positions, strict=True):
            unwritten = [place for place in range(window) if place >= position or place == position % window]
            self.keys[slot, :, unwritten] = self.values[slot, :, unwritten] = float("nan")

    def run(self, folder: Path, rows: slice = slice(None), seed: int = 0, *, tiles: bool = False) -> list[Tensor]:
        """The output, and the keys and values of all slots."""
        qkv, keys, values = bf16_bits(self.qkv[rows]), bf16_bits(self.keys), bf16_bits(self.values)
        natural = torch.full((len(qkv), HEADS * DIM), 7.0).bfloat16()
        out = bf16_bits(in_tiles(natural) if tiles else natural)
        cos, sin = (aligned(angle[rows].numpy()) for angle in (self.cos, self.sin))
        slots, positions = (np.array(ints[rows], np.int32) for ints in (self.slots, self.positions))
        arguments = WindowArguments(
            *(array.ctypes.data for array in (qkv, cos, sin, slots, positions, keys, values, out)),
            WIDTH, out[0].size, HEADS * self.window * DIM, SCALE,
        )  # fmt: skip
        emulate(window_launch(HEADS, self.window, len(qkv), tiles=tiles), arguments, folder, late=[qkv], seed=seed)
        done = from_tiles(of_bits(out), len(qkv)) if tiles else of_bits(out)
        return [done, of_bits(keys), of_bits(values)]

    def reference(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """The output, the new key and the new value of a row."""
        slot, position = self.slots[row], self.positions[row]
        q, k, v = self.qkv[row].view(3, HEADS, DIM)
        angles = self.cos[row], self.sin[row]
        key = rotated(k, *angles).bfloat16()
        seen = [place for place in range(self.window) if place < position and place != position % self.window]
        keys, values = (
            torch.cat((cache[slot][:, seen], new[:, None]), dim=1).float()
            for cache, new in ((self.keys, key), (self.values, v))
        )
        mixed = F.scaled_dot_product_attention(rotated(q, *angles)[:, None], keys, values)
        return mixed.flatten().bfloat16(), key, v


@pytest.mark.parametrize("window", [72, 10])
def test_a_frame_sees_the_window_and_nothing_else(window: int, folder: Path) -> None:
    case = Window(window)
    out, keys, values = case.run(folder)
    for row, (slot, position) in enumerate(zip(case.slots, case.positions, strict=True)):
        expected, new_key, new_value = case.reference(row)
        place = position % window
        assert_same_roundings(out[row], expected, flips=0.03)
        assert_same_roundings(keys[slot, :, place], new_key, flips=0.01)
        assert torch.equal(values[slot, :, place], new_value)
        keys[slot, :, place], values[slot, :, place] = case.keys[slot, :, place], case.values[slot, :, place]
    for before, after in ((case.keys, keys), (case.values, values)):
        assert torch.equal(before.view(torch.int16), after.view(torch.int16)), "one new place per slot"


def test_the_batch_does_not_change_a_row(folder: Path) -> None:
    case = Window(72)
    whole = case.run(folder)[0]
    for rows in (slice(0, 1), slice(2, 5)):
        assert torch.equal(case.run(folder, rows, seed=3)[0], whole[rows])


def test_an_output_in_tiles_has_the_same_values(folder: Path) -> None:
    case = Window(72)
    assert torch.equal(case.run(folder, tiles=True, seed=2)[0], case.run(folder)[0])
