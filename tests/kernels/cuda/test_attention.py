"""The CUDA attention kernels on a CPU, against a plain computation with the stated roundings."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from oscine.kernels.cuda.launches import (
    BLOCK_POSITIONS,
    CAPACITY,
    DIM,
    PredictorArguments,
    TalkerArguments,
    predictor_launch,
    talker_launch,
)
from oscine.kernels.cuda.program import from_tiles, in_tiles
from tests.kernels.cuda import plain_operations
from tests.kernels.cuda.emulation import aligned, bf16_bits, emulate, of_bits
from tests.kernels.cuda.plain_operations import attended
from tests.kernels.measures import assert_same_roundings

pytestmark = pytest.mark.slow

HEADS, KV_HEADS, EPSILON, SCALE = 4, 2, 1e-6, DIM**-0.5
WIDTH = (HEADS + 2 * KV_HEADS) * DIM


def random(*shape: int, seed: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale + shift).bfloat16()


def angles(positions: int) -> tuple[Tensor, Tensor]:
    at = torch.arange(positions)[:, None] * 1e6 ** (-torch.arange(0, DIM, 2) / DIM)
    return at.cos().contiguous(), at.sin().contiguous()


def rotated(x: Tensor, scale: Tensor, position: int) -> Tensor:
    cos, sin = angles(position + 1)
    return plain_operations.rotated(x, scale, EPSILON, cos[position], sin[position])


def output(rows: int, *, tiles: bool) -> np.ndarray:
    natural = torch.full((rows, HEADS * DIM), 7.0).bfloat16()
    return bf16_bits(in_tiles(natural) if tiles else natural)


def rows_of(out: np.ndarray, rows: int) -> Tensor:
    return from_tiles(of_bits(out), rows) if out.ndim == 3 else of_bits(out)


class Predictor:
    def __init__(self, sequences: int, position: int, new: int) -> None:
        self.position, self.new, self.sequences = position, new, sequences
        self.qkv = random(sequences * new, WIDTH, seed=0)
        self.q_scale, self.k_scale = (random(DIM, seed=seed, scale=0.2, shift=1.0) for seed in (1, 2))
        self.keys, self.values = (random(sequences, KV_HEADS, CAPACITY, DIM, seed=seed) for seed in (3, 4))

    def run(
        self, folder: Path, sequences: slice = slice(None), seed: int = 0, *, tiles: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        here = self.qkv.unflatten(0, (self.sequences, self.new))[sequences].flatten(0, 1)
        qkv, keys, values = bf16_bits(here), bf16_bits(self.keys[sequences]), bf16_bits(self.values[sequences])
        keys[:, :, self.position :] = values[:, :, self.position :] = 0xFFFF  # not a number: not to be read
        out = output(len(qkv), tiles=tiles)
        scales = [bf16_bits(scale) for scale in (self.q_scale, self.k_scale)]
        tables = [aligned(angle.numpy()) for angle in angles(CAPACITY)]
        arguments = PredictorArguments(
            *(array.ctypes.data for array in (qkv, *scales, *tables, keys, values, out)),
            self.position, WIDTH, out[0].size, KV_HEADS * CAPACITY * DIM, CAPACITY * DIM, EPSILON, SCALE,
        )  # fmt: skip
        launch = predictor_launch(HEADS, KV_HEADS, len(keys), self.new, tiles=tiles)
        emulate(launch, arguments, folder, late=[qkv], seed=seed)
        return rows_of(out, len(qkv)), of_bits(keys), of_bits(values)

    def reference(self) -> tuple[Tensor, Tensor]:
        """The output, and the keys of the new positions."""
        outs, news = [], []
        for row, x in enumerate(self.qkv):
            sequence, token = divmod(row, self.new)
            heads = x.view(-1, DIM)
            at = self.position + token
            self.keys[sequence, :, at] = rotated(heads[HEADS : HEADS + KV_HEADS], self.k_scale, at)
            self.values[sequence, :, at] = heads[HEADS + KV_HEADS :]
            q = rotated(heads[:HEADS], self.q_scale, at)
            outs.append(attended(q, self.keys[sequence, :, : at + 1], self.values[sequence, :, : at + 1]).flatten())
            news.append(self.keys[sequence, :, at])
        return torch.stack(outs), torch.stack(news)


@pytest.mark.parametrize(("position", "new"), [(0, 2), (2, 1), (15, 1)])
def test_predictor_attention(position: int, new: int, folder: Path) -> None:
    case = Predictor(3, position, new)
    out, keys, values = case.run(folder)
    expected, new_keys = case.reference()
    assert_same_roundings(out, expected, flips=0.01)
    written = keys[:, :, position : position + new].transpose(1, 2).flatten(0, 1)
    assert_same_roundings(written, new_keys, flips=0.002)
    assert torch.equal(values[:, :, : position + new], case.values[:, :, : position + new])
    alone, _, _ = case.run(folder, slice(1, 2), seed=2)
    assert torch.equal(alone, out[new : 2 * new])
    tiled, _, _ = case.run(folder, tiles=True)
    assert torch.equal(tiled, out)


class Talker:
    """Slots of different lengths whose blocks are scattered over the cache; one row pads the batch. The new position is
    in each of the four warps, at its beginning and at its end, in the first cache block and in others."""

    POSITIONS = (0, 16, 63, 64, 111, 150)

    def __init__(self) -> None:
        slots, blocks = len(self.POSITIONS), 3
        self.slots = [3, 0, 5, -1, 1, 4, 2]
        self.table = torch.randperm(slots * blocks, generator=torch.Generator().manual_seed(9)).view(slots, blocks)
        self.qkv = random(len(self.slots), WIDTH, seed=0)
        self.q_scale, self.k_scale = (random(DIM, seed=seed, scale=0.2, shift=1.0) for seed in (1, 2))
        shape = (slots * blocks, KV_HEADS, BLOCK_POSITIONS, DIM)
        self.keys, self.values = (random(*shape, seed=seed) for seed in (3, 4))
        for slot, position in enumerate(self.POSITIONS):  # what no stream has written must not be read
            for at in range(position, blocks * BLOCK_POSITIONS):
                self.keys[self.table[slot, at // BLOCK_POSITIONS], :, at % BLOCK_POSITIONS] = float("nan")
                self.values[self.table[slot, at // BLOCK_POSITIONS], :, at % BLOCK_POSITIONS] = float("nan")

    def run(
        self, folder: Path, rows: slice = slice(None), seed: int = 0, *, tiles: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv, keys, values = bf16_bits(self.qkv[rows]), bf16_bits(self.keys), bf16_bits(self.values)
        out = output(len(qkv), tiles=tiles)
        scales = [bf16_bits(scale) for scale in (self.q_scale, self.k_scale)]
        tables = [aligned(angle.numpy()) for angle in angles(256)]
        state = [np.array(ints, np.int64) for ints in (self.table.tolist(), self.POSITIONS, self.slots[rows])]
        arguments = TalkerArguments(
            *(array.ctypes.data for array in (qkv, *scales, *tables, keys, values, *state, out)),
            WIDTH, out[0].size, KV_HEADS * BLOCK_POSITIONS * DIM, BLOCK_POSITIONS * DIM, self.table.shape[1],
            EPSILON, SCALE,
        )  # fmt: skip
        launch = talker_launch(HEADS, KV_HEADS, len(qkv), tiles=tiles)
        emulate(launch, arguments, folder, late=[qkv], seed=seed)
        return rows_of(out, len(qkv)), of_bits(keys), of_bits(values)

    def reference(self, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """The output, the new key and the new value of a row."""
        position, blocks = self.POSITIONS[self.slots[row]], self.table[self.slots[row]]
        heads = self.qkv[row].view(-1, DIM)
        new_k, new_v = rotated(heads[HEADS : HEADS + KV_HEADS], self.k_scale, position), heads[HEADS + KV_HEADS :]
        old = (cache[blocks].transpose(1, 2).flatten(0, 1)[:position] for cache in (self.keys, self.values))
        k, v = (torch.cat((past, new[None])).transpose(0, 1) for past, new in zip(old, (new_k, new_v), strict=True))
        return attended(rotated(heads[:HEADS], self.q_scale, position), k, v).flatten(), new_k, new_v

    def new_place(self, row: int) -> tuple[int, slice, int]:
        position = self.POSITIONS[self.slots[row]]
        block = self.table[self.slots[row], position // BLOCK_POSITIONS]
        return int(block), slice(None), position % BLOCK_POSITIONS


def test_talker_attention(folder: Path) -> None:
    case = Talker()
    out, keys, values = case.run(folder)
    for row, slot in enumerate(case.slots):
        if slot < 0:
            assert (out[row] == 7).all()
            continue
        expected, new_k, new_v = case.reference(row)
        assert_same_roundings(out[row], expected, flips=0.015)
        assert_same_roundings(keys[case.new_place(row)], new_k, flips=0.005)
        assert torch.equal(values[case.new_place(row)], new_v)
    unwritten = torch.isnan(case.keys).any(-1).sum() - torch.isnan(keys).any(-1).sum()
    assert unwritten == len(case.POSITIONS) * KV_HEADS, "one new position per slot"
    assert torch.equal(keys[~torch.isnan(case.keys)], case.keys[~torch.isnan(case.keys)])


def test_the_batch_does_not_change_a_row(folder: Path) -> None:
    case = Talker()
    whole, _, _ = case.run(folder)
    for rows in (slice(0, 1), slice(2, 7)):
        alone, _, _ = case.run(folder, rows, seed=3)
        assert torch.equal(alone, whole[rows])


def test_an_output_in_tiles_has_the_same_values(folder: Path) -> None:
    case = Talker()
    assert torch.equal(case.run(folder, tiles=True)[0], case.run(folder)[0])
