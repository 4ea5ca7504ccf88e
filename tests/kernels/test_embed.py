"""Gathers are exact copies; sums of embeddings are compared with the model's."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.embed import gather, next_input
from tests.kernels.measures import assert_same_roundings, graph_seconds, report

pytestmark = pytest.mark.slow

BOOKS = 16


def random(device, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=device).bfloat16()


@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("width", [64, 96, 40])
def test_gather(device, rows, width):
    table = random(device, 20, width)
    codes = torch.randint(20, (rows, BOOKS), device=device)
    out = torch.zeros(rows, width, dtype=torch.bfloat16, device=device)
    gather(table, codes[:, 5], out)
    assert torch.equal(out, table[codes[:, 5]])


def test_gather_into_every_second_row(device):
    table = random(device, 20, 64)
    out = torch.zeros(6, 64, dtype=torch.bfloat16, device=device)
    gather(table, torch.tensor([3, -1, 7], device=device), out[1::2])
    expected = torch.zeros_like(out)
    expected[1], expected[5] = table[3], table[7]  # the middle row is padding of the batch
    assert torch.equal(out, expected)


class Talker:
    """Tables and per-slot state of a talker before its next input."""

    def __init__(self, device, slots: int, width: int, vocab: int, text_vocab: int = 30) -> None:
        self.first_table = random(device, vocab + 10, width, seed=1)
        self.tables = random(device, BOOKS - 1, vocab, width, seed=2)
        self.text_table = random(device, text_vocab, width, seed=3)
        self.text_ids = torch.randint(text_vocab, (slots, 8), dtype=torch.int32, device=device)
        self.text_count = torch.arange(slots, dtype=torch.int32, device=device) % 8
        self.frame = torch.arange(slots, dtype=torch.int32, device=device) % 5
        self.position = self.frame + 10
        self.inputs = torch.zeros(slots, width, dtype=torch.bfloat16, device=device)
        self.pad = text_vocab - 1

    def run(self, codes: Tensor, slot: Tensor) -> None:
        next_input(
            codes, slot, self.first_table, self.tables, self.text_table, self.text_ids, self.text_count, self.pad,
            self.frame, self.position, self.inputs,
        )  # fmt: skip

    def reference(self, codes: Tensor, slot: int) -> Tensor:
        """Computes as SpeechModel.frame_rows and the frame loop do: one rounding of the sum, one with the text."""
        first = self.first_table[codes[:1]]
        others = self.tables[torch.arange(BOOKS - 1, device=codes.device), codes[1:]]
        frame = int(self.frame[slot])
        text = int(self.text_ids[slot, frame]) if frame < self.text_count[slot] else self.pad
        return torch.cat((first, others)).sum(0) + self.text_table[text]


def random_codes(device, rows: int, vocab: int) -> Tensor:
    codes = torch.randint(vocab, (rows, BOOKS), device=device)
    codes[0, 0] = vocab + 3  # code 0 has more ids than the others
    return codes


def check(device, rows: int, width: int, vocab: int) -> None:
    talker = Talker(device, rows + 2, width, vocab)
    slot = torch.arange(rows, 0, -1, device=device)
    codes = random_codes(device, rows, vocab)
    expected = torch.stack([talker.reference(codes[row], int(slot[row])) for row in range(rows)])
    frame, position = talker.frame.clone(), talker.position.clone()
    talker.run(codes, slot)
    assert_same_roundings(talker.inputs[slot], expected)
    frame[slot] += 1
    position[slot] += 1
    assert torch.equal(talker.frame, frame) and torch.equal(talker.position, position)
    assert not talker.inputs[0].any() and not talker.inputs[-1].any()


@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("width", [64, 96])
def test_next_input(device, rows, width):
    check(device, rows, width, vocab=20)


def test_rows_without_a_slot_are_unchanged(device):
    talker = Talker(device, 3, 64, 20)
    frame = talker.frame.clone()
    talker.run(random_codes(device, 2, 20), torch.tensor([-1, 1], device=device))
    frame[1] += 1
    assert torch.equal(talker.frame, frame)
    assert talker.inputs.any(1).tolist() == [False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 32, 128])
def test_published_sizes(device, rows):
    check(device, rows, 2048, 2048)
    talker, slot = Talker(device, rows, 2048, 2048), torch.arange(rows, device=device)
    talker.text_count.zero_()  # every call of the graph advances the counters
    codes = random_codes(device, rows, 2048)
    report(f"next input, {rows} rows", graph_seconds(lambda: talker.run(codes, slot)), rows * 18 * 4096)
    table, out = random(device, 2048, 1024), torch.empty(rows, 1024, dtype=torch.bfloat16, device=device)
    report(f"gather, {rows} rows", graph_seconds(lambda: gather(table, codes[:, 1], out)), rows * 2 * 2048)
