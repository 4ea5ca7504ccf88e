"""Sampled ids equal those of runner/sampling.py exactly: same seed, same speech."""

import pytest
import torch
from torch import Tensor

from oscine.request import DrawParams

pytest.importorskip("triton", reason="triton is not installed: kernels cannot be tested")

from oscine.kernels.sample import Draws, FirstCode, sample, take_codes
from oscine.runner.sampling import DrawTable, draw, probabilities
from tests.kernels.draw_cases import (  # noqa: F401  (order_of_equals is a fixture)
    MIXED,
    PARAMS,
    FirstCodeReference,
    order_of_equals,
    random_logits,
)
from tests.kernels.measures import graph_seconds
from tests.reference.generate import uniforms

pytestmark = pytest.mark.slow


def state(device, params: list[DrawParams], seeds: list[int], frame: int) -> Draws:
    def column(values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return Draws(
        temperature=column([p.temperature for p in params], torch.float32),
        top_k=column([p.top_k for p in params], torch.int32),
        tail=column([p.tail for p in params], torch.float32),
        greedy=column([p.greedy for p in params], torch.bool),
        seed_low=column([seed % 2**32 for seed in seeds], torch.int64),
        seed_high=column([seed >> 32 for seed in seeds], torch.int64),
        frame=torch.full((len(params),), frame, dtype=torch.int32, device=device),
    )


def no_failures(rows: int, device) -> Tensor:
    return torch.zeros(rows, dtype=torch.int16, device=device)


def check(device, logits: Tensor, params: list[DrawParams], book: int = 3, frame: int = 7) -> None:
    rows = len(params)
    seeds = [(0x9E3779B97F4A7C15 * (row + 1) + frame) % 2**64 for row in range(rows)]
    # Rows are in the reverse order of their slots.
    slot = torch.arange(rows - 1, -1, -1, device=device)
    codes = torch.full((rows, 16), -1, device=device)
    sample(logits.flip(0), slot, state(device, params, seeds, frame), codes, book, no_failures(rows, device))
    cpu = torch.device("cpu")
    uniform = uniforms(seeds, frame, 1, cpu)[:, 0, book]
    table = DrawTable.of(params, cpu)
    expected = draw(logits.cpu().float(), table, uniform)
    drawn = codes[:, book].flip(0).cpu()
    for row in (drawn != expected).nonzero()[:, 0].tolist():
        # fp32 sums of thousands of shares differ in the last digits: only a draw on the border may differ.
        mass = probabilities(logits.cpu().float(), table)[row].double().cumsum(0)
        border = mass[min(drawn[row], expected[row])]
        assert abs(border - uniform[row] * mass[-1]) < 1e-6, (row, drawn[row], expected[row])
    assert (codes[:, :book] == -1).all() and (codes[:, book + 1 :] == -1).all()


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("vocab", [64, 100])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_equal_the_reference(device, name, vocab, ties, dtype):
    logits = random_logits(device, 6, vocab, seed=vocab, ties=ties).to(dtype)
    check(device, logits, [PARAMS[name]] * 6)


@pytest.mark.parametrize("rows", [1, 3, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_has_its_own_parameters(device, rows, dtype):
    params = [MIXED[row % len(MIXED)] for row in range(rows)]
    for frame in (0, 1, 1000):
        check(device, random_logits(device, rows, 50, seed=frame).to(dtype), params, book=frame % 15 + 1, frame=frame)


def test_a_large_vocabulary(device):
    check(device, random_logits(device, len(MIXED), 3072, seed=1), MIXED)


def test_excluded_ids_are_never_drawn(device):
    logits = torch.full((4, 64), float("-inf"), device=device)
    logits[:, 5], logits[:, 40] = 1.0, 1.0
    # Fewer ids than top-k.
    check(device, logits, [DrawParams(top_k=50), DrawParams(top_k=0), DrawParams(top_p=0.3), DrawParams(greedy=True)])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("params", [DrawParams(greedy=True), DrawParams(), DrawParams(top_k=0, top_p=0.9)], ids=str)
def test_logits_that_are_not_finite_fail_their_row_and_give_a_valid_code(device, params, everywhere, bad):
    draws, codes = state(device, [params] * 3, [1, 2, 3], 4), torch.full((3, 16), -1, device=device)
    logits = random_logits(device, 3, 64, seed=2)
    slot, failed = torch.arange(3, device=device), no_failures(3, device)
    sample(logits, slot, draws, codes, 2, failed)
    good, codes[:, 2] = codes[:, 2].clone(), -1
    assert failed.tolist() == [0, 0, 0]
    logits[1, :] = bad if everywhere else logits[1, :]
    logits[1, 7] = bad
    sample(logits, slot, draws, codes, 2, failed)
    assert failed.tolist() == [0, 1, 0]
    assert codes[[0, 2], 2].tolist() == good[[0, 2]].tolist()
    assert 0 <= codes[1, 2] < 64
    sample(random_logits(device, 3, 64, seed=2), slot, draws, codes, 3, failed)
    assert failed.tolist() == [0, 1, 0]  # a later code does not undo it


def test_rows_without_a_slot_keep_their_code(device):
    codes = torch.full((3, 16), 9, device=device)
    draws = state(device, [DrawParams(greedy=True)] * 2, [1, 2], 0)
    logits = random_logits(device, 3, 64, seed=2)
    sample(logits, torch.tensor([1, -1, 0], device=device), draws, codes, 2, no_failures(3, device))
    assert codes[:, 2].tolist() == [logits[0].argmax().item(), 9, logits[2].argmax().item()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("penalty", [1.0, 1.3, 0.7])
def test_the_rules_of_code_0(device, dtype, penalty):
    hold = [row % 2 for row in range(len(MIXED))]
    reference = FirstCodeReference(MIXED, penalty, hold)
    rules = FirstCode(
        penalty=torch.full((len(MIXED),), penalty, device=device),
        seen=torch.zeros(len(MIXED), reference.vocab, dtype=torch.uint8, device=device),
        hold_eos=torch.tensor(hold, dtype=torch.uint8, device=device),
        codes=reference.codes,
        eos=reference.eos,
    )
    slot = torch.arange(len(MIXED), dtype=torch.int32, device=device)
    for frame in range(5):
        logits = reference.logits(frame).to(dtype)
        codes = torch.zeros(len(MIXED), 16, dtype=torch.int32, device=device)
        draws, failed = state(device, MIXED, reference.seeds, frame), no_failures(len(MIXED), device)
        sample(logits.to(device), slot, draws, codes, 0, failed, first=rules)
        drawn = codes[:, 0].tolist()
        assert drawn == reference.draw(logits, frame)
        reference.check_ends(drawn, frame)
        assert torch.equal(rules.seen.cpu() != 0, reference.seen)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 32, 128])
@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("vocab", [2048, 3072])
def test_published_vocabularies(device, rows, name, vocab):
    for frame in range(8):
        check(device, random_logits(device, rows, vocab, seed=frame), [PARAMS[name]] * rows, frame=frame)
    logits = random_logits(device, rows, vocab, seed=0).bfloat16()
    draws = state(device, [PARAMS[name]] * rows, list(range(rows)), 3)
    codes, slot = torch.zeros(rows, 16, device=device, dtype=torch.int64), torch.arange(rows, device=device)
    failed = no_failures(rows, device)
    seconds = graph_seconds(lambda: sample(logits, slot, draws, codes, 1, failed))
    print(f"\n{name}, {rows} rows of {vocab}: {seconds * 1e6:.1f} us")  # too few bytes to compute a bandwidth


# --- copies of a tick's codes ---


BOOKS, SCRATCH = 16, 40


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_codes_slots_and_failures_are_copied(device, rows):
    slots = torch.arange(rows, device=device).flip(0)
    slots[rows // 2] = -1
    codes = torch.randint(3072, (rows, BOOKS), device=device)
    failed = torch.arange(rows, device=device, dtype=torch.int16) % 2
    codec_slots, codec_codes = torch.full_like(slots, -7, dtype=torch.int32), torch.full_like(codes, -7)
    codes_out, failed_out = torch.full_like(codes, -7, dtype=torch.int16), torch.full_like(failed, -7)
    take_codes(slots, codes, failed, SCRATCH, codec_slots, codec_codes, codes_out, failed_out)
    assert torch.equal(codec_slots, torch.where(slots < 0, SCRATCH, slots).int())
    assert torch.equal(codec_codes, codes) and torch.equal(codes_out.long(), codes)
    assert torch.equal(failed_out, failed)
