"""How prompts are packed. (test_decode_step.py and test_interpreted.py test what the kernels compute of a pack.)"""

import pytest
import torch

pytest.importorskip("triton")

from oscine.runner.cuda.prefill import PREFILL_SIZES, PackedPrefill

WIDTH, BLOCKS = 4, 3
LARGEST = PREFILL_SIZES[-1]


class RecordingStep:
    """Records every pack instead of computing it."""

    def __init__(self) -> None:
        self.packs: list[tuple[int, list[tuple[float, int, int]]]] = []  # size, (input, first block, position) per row

    def prefill(self, inputs, block_table, positions) -> None:
        rows = zip(inputs[:, 0].tolist(), block_table[:, 0].tolist(), positions.tolist(), strict=True)
        self.packs.append((len(inputs), [row for row in rows if row[2] >= 0]))


@pytest.fixture
def step():
    return RecordingStep()


@pytest.fixture
def prefill(step):
    return PackedPrefill(step, WIDTH, BLOCKS, torch.zeros(1), captured=False)


def add(prefill, number: int, rows: int, first: int = 0) -> list[tuple[float, int, int]]:
    """A prompt whose inputs and blocks are its number. Returns its rows as RecordingStep notes them."""
    prefill.add(torch.full((rows, WIDTH), float(number)), first, torch.full((BLOCKS,), number))
    return [(float(number), number, first + row) for row in range(rows)]


def test_prompts_added_together_are_one_pack(step, prefill):
    expected = add(prefill, 1, 7) + add(prefill, 2, 20, first=3) + add(prefill, 3, 1)
    assert step.packs == []
    prefill.flush()
    assert step.packs == [(32, expected)]


def test_a_long_prompt_continues_in_the_next_pack(step, prefill):
    expected = add(prefill, 1, 10) + add(prefill, 2, 2 * LARGEST)
    prefill.flush()
    assert [size for size, _ in step.packs] == [LARGEST, LARGEST, 16]
    assert [row for _, rows in step.packs for row in rows] == expected


def test_a_flush_leaves_nothing_pending(step, prefill):
    add(prefill, 1, 100)
    prefill.flush()
    expected = add(prefill, 2, 2)
    prefill.flush()
    prefill.flush()
    assert step.packs[1:] == [(16, expected)]
