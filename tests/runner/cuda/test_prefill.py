"""How prompts are packed. (What the kernels make of a pack: tests/kernels, tests/runner/cuda/test_decode_step.py.)"""

import pytest
import torch

pytest.importorskip("triton")

from oscine.runner.cuda.prefill import PREFILL_SIZES, CudaPrefill

WIDTH, PAGES = 4, 3
MOST = PREFILL_SIZES[-1]


class Packs:
    """In the chain's place: notes every pack that reaches it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[tuple[float, int, int]]]] = []  # size, (input, first page, position) per row

    def prefill(self, inputs, page_table, positions) -> None:
        rows = zip(inputs[:, 0].tolist(), page_table[:, 0].tolist(), positions.tolist(), strict=True)
        self.seen.append((len(inputs), [row for row in rows if row[2] >= 0]))


@pytest.fixture
def packs():
    return Packs()


@pytest.fixture
def prefill(packs):
    return CudaPrefill(packs, WIDTH, PAGES, torch.zeros(1), captured=False)


def add(prefill, number: int, rows: int, first: int = 0) -> list[tuple[float, int, int]]:
    """A prompt whose rows are its number, in pages of the same number."""
    prefill.add(torch.full((rows, WIDTH), float(number)), first, torch.full((PAGES,), number))
    return [(float(number), number, first + row) for row in range(rows)]


def test_prompts_that_come_together_are_one_pack(packs, prefill):
    wanted = add(prefill, 1, 7) + add(prefill, 2, 20, first=3) + add(prefill, 3, 1)
    assert packs.seen == []
    prefill.flush()
    assert packs.seen == [(32, wanted)]


def test_a_long_prompt_goes_on_in_the_next_pack(packs, prefill):
    wanted = add(prefill, 1, 10) + add(prefill, 2, 2 * MOST)
    prefill.flush()
    assert [size for size, _ in packs.seen] == [MOST, MOST, 16]
    assert [row for _, rows in packs.seen for row in rows] == wanted


def test_nothing_is_left_for_the_next_flush(packs, prefill):
    add(prefill, 1, 100)
    prefill.flush()
    wanted = add(prefill, 2, 2)
    prefill.flush()
    prefill.flush()
    assert packs.seen[1:] == [(16, wanted)]
