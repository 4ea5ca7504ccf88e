"""The CUDA sampler on a CPU draws the codes of runner/sampling.py, and looks up what follows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from oscine.kernels.cuda.launches import SampleArguments, sample_launch
from oscine.request import DrawParams
from oscine.runner.sampling import DrawTable, draw, penalize
from tests.kernels.cuda.emulation import bf16_bits, emulate, of_bits
from tests.kernels.draw_cases import (  # noqa: F401  (order_of_equals is a fixture)
    MIXED,
    FirstCodeReference,
    order_of_equals,
    random_logits,
)
from tests.reference.generate import uniforms

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
BOOK, BOOKS, X_WIDTH, QKV_WIDTH = 3, 16, 24, 40


@dataclass
class Drawn:
    codes: np.ndarray  # [rows, BOOKS]
    failed: np.ndarray
    x: Tensor
    qkv: Tensor
    inputs: Tensor
    first_qkv: Tensor


def run(folder: Path, logits: Tensor, params: list[DrawParams], *, last: bool = False, order: int = 0) -> Drawn:
    """Rows are in the reverse order of their slots; the row after the last one has none."""
    rows, ids = logits.shape
    padded = bf16_bits(torch.cat([logits.flip(0), torch.zeros(1, ids)]))
    codes, failed = np.full((rows + 1, BOOKS), -7, np.int64), np.zeros(rows + 1, np.int16)
    widths = (0, 0) if last else (X_WIDTH, QKV_WIDTH)
    inputs, first_qkv = (bf16_bits(random_logits(CPU, ids, width or 8, width)) for width in widths)
    x, qkv = (bf16_bits(torch.zeros(rows + 1, width or 8)) for width in widths)
    settings = [slots_of(rows), codes[:, BOOK:], failed, *settings_of(params, seeds(rows), frame=7)]
    arrays = [padded, *settings, inputs, first_qkv, x, qkv]
    arguments = SampleArguments(
        *(array.ctypes.data for array in arrays),
        book=BOOK, logits_stride=ids, code_stride=BOOKS, x_stride=X_WIDTH, qkv_stride=QKV_WIDTH,
    )  # fmt: skip
    emulate(sample_launch(ids, *widths, rows + 1), arguments, folder, late=[padded], seed=order)
    return Drawn(codes, failed, *map(of_bits, (x, qkv, inputs, first_qkv)))


def slots_of(rows: int) -> np.ndarray:
    return np.array([*range(rows - 1, -1, -1), -1], np.int64)


def settings_of(params: list[DrawParams], seeds: list[int], frame: int) -> list[np.ndarray]:
    """Settings in the order of the kernel's arguments."""
    floats = [np.array([getattr(p, name) for p in params], np.float32) for name in ("temperature", "tail")]
    ints = [np.array([getattr(p, name) for p in params], np.int64) for name in ("top_k", "greedy")]
    halves = [[seed % 2**32 for seed in seeds], [seed >> 32 for seed in seeds], [frame] * len(params)]
    return [*floats, *ints, *(np.array(half, np.int64) for half in halves)]


def seeds(rows: int) -> list[int]:
    return [(0x9E3779B97F4A7C15 * (row + 1) + 7) % 2**64 for row in range(rows)]


def expected_codes(logits: Tensor, params: list[DrawParams]) -> Tensor:
    uniform = uniforms(seeds(len(params)), 7, 1, CPU)[:, 0, BOOK]
    return draw(logits.bfloat16().float(), DrawTable.of(params, CPU), uniform)


@pytest.mark.parametrize("ids", [2048, 264, 32])
@pytest.mark.parametrize("ties", [False, True])
def test_codes_are_those_of_the_reference(ids: int, ties: bool, folder: Path) -> None:
    for seed in range(3):
        logits = random_logits(CPU, len(MIXED), ids, seed, ties=ties)
        if seed == 2:
            logits -= 30  # all are negative
        drawn = run(folder, logits, MIXED, order=seed)
        assert drawn.codes[:-1, BOOK][::-1].tolist() == expected_codes(logits, MIXED).tolist()
        assert not drawn.failed.any()
        written = np.zeros_like(drawn.codes, dtype=bool)
        written[:-1, BOOK] = True
        assert (drawn.codes[~written] == -7).all(), "other codes, and the row without a slot, are as before"


def test_the_next_input_follows_from_the_code(folder: Path) -> None:
    drawn = run(folder, random_logits(CPU, 3, 264, 5), MIXED[:3], order=2)
    codes = drawn.codes[:-1, BOOK]
    assert torch.equal(drawn.x[:-1], drawn.inputs[codes]) and torch.equal(drawn.qkv[:-1], drawn.first_qkv[codes])
    assert not drawn.x[-1].any() and not drawn.qkv[-1].any(), "the row without a slot"


def test_nothing_follows_the_last_code(folder: Path) -> None:
    logits = random_logits(CPU, 3, 264, 5)
    drawn = run(folder, logits, MIXED[:3], last=True)
    assert drawn.codes[:-1, BOOK][::-1].tolist() == expected_codes(logits, MIXED[:3]).tolist()
    assert not drawn.x.any() and not drawn.qkv.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite_fails_its_row_alone(value: float, folder: Path) -> None:
    logits = random_logits(CPU, len(MIXED), 264, 9)
    good = run(folder, logits, MIXED).codes
    logits[4, 200] = value
    drawn = run(folder, logits, MIXED)
    row = len(MIXED) - 1 - 4
    assert drawn.failed.nonzero()[0].tolist() == [row]
    others = [other for other in range(len(MIXED)) if other != row]
    assert (drawn.codes[others] == good[others]).all() and 0 <= drawn.codes[row, BOOK] < 264


def test_minus_infinity_excludes_an_id(folder: Path) -> None:
    logits = random_logits(CPU, len(MIXED), 264, 11)
    logits[:, ::2] = -float("inf")
    drawn = run(folder, logits, MIXED)
    assert not drawn.failed.any() and (drawn.codes[:-1, BOOK] % 2 == 1).all()
    assert drawn.codes[:-1, BOOK][::-1].tolist() == expected_codes(logits, MIXED).tolist()


@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.7])
def test_code_0_follows_its_rules(penalty: float, folder: Path) -> None:
    hold = np.array([row % 2 for row in range(len(MIXED))], np.int64)
    reference = FirstCodeReference(MIXED, penalty, hold.tolist())
    rows, ids = reference.rows, reference.vocab
    seen, penalties = np.zeros((rows, ids), np.bool_), np.full(rows, penalty, np.float32)
    inputs, x = bf16_bits(random_logits(CPU, ids, X_WIDTH, 1)), bf16_bits(torch.zeros(rows + 1, X_WIDTH))
    for frame in range(5):
        logits = reference.logits(frame).bfloat16()
        padded = bf16_bits(torch.cat([logits.float().flip(0), torch.zeros(1, ids)]))
        codes, failed = np.full((rows + 1, BOOKS), -7, np.int64), np.ones(rows + 1, np.int16)
        arrays = [padded, slots_of(rows), codes, failed, *settings_of(MIXED, reference.seeds, frame)]
        arguments = SampleArguments(
            *(array.ctypes.data for array in arrays),
            inputs=inputs.ctypes.data, next_x=x.ctypes.data, x_stride=X_WIDTH,
            penalty=penalties.ctypes.data, hold_eos=hold.ctypes.data, seen=seen.ctypes.data, seen_stride=ids,
            logits_stride=ids, code_stride=BOOKS, code_count=reference.codes, eos=reference.eos, min_frames=2,
        )  # fmt: skip
        launch = sample_launch(ids, X_WIDTH, 0, rows + 1, first=True)
        emulate(launch, arguments, folder, late=[padded], seed=frame)
        drawn = codes[:-1, 0][::-1].tolist()
        assert drawn == reference.draw(logits, frame)
        reference.check_ends(drawn, frame)
        assert (seen == reference.seen.numpy()).all()
        assert failed.tolist() == [0] * rows + [1], "the row without a slot keeps its own"
        assert torch.equal(of_bits(x)[:-1], of_bits(inputs)[codes[:-1, 0]])
        assert (codes[:, 1:] == -7).all() and codes[-1, 0] == -7


def test_code_0_is_drawn_from_a_large_vocabulary(folder: Path) -> None:
    """Whose rows need every bit of their keys: with a repetition penalty, values are no bf16 numbers."""
    ids, rows = 3072, len(MIXED)
    logits, penalty = random_logits(CPU, rows, ids, 4).bfloat16().float(), 1.1
    seen = torch.rand(rows, ids, generator=torch.Generator().manual_seed(5)) < 0.5
    padded, before = bf16_bits(torch.cat([logits.flip(0), torch.zeros(1, ids)])), seen.numpy().copy()
    codes, failed = np.full((rows + 1, BOOKS), -7, np.int64), np.zeros(rows + 1, np.int16)
    hold, penalties = np.zeros(rows, np.int64), np.full(rows, penalty, np.float32)
    arrays = [padded, slots_of(rows), codes, failed, *settings_of(MIXED, seeds(rows), frame=7)]
    arguments = SampleArguments(
        *(array.ctypes.data for array in arrays),
        penalty=penalties.ctypes.data, hold_eos=hold.ctypes.data, seen=before.ctypes.data, seen_stride=ids,
        logits_stride=ids, code_stride=BOOKS, code_count=ids, eos=0, min_frames=2,
    )  # fmt: skip
    emulate(sample_launch(ids, 0, 0, rows + 1, first=True), arguments, folder, late=[padded])
    penalized = penalize(logits, seen, torch.full((rows, 1), penalty))
    expected = draw(penalized, DrawTable.of(MIXED, CPU), uniforms(seeds(rows), 7, 1, CPU)[:, 0, 0])
    assert codes[:-1, 0][::-1].tolist() == expected.tolist()
