"""Sampling: random numbers come from Philox, codes have the right frequencies, and rows are independent."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from oscine.request import DrawParams
from oscine.runner.sampling import DrawTable, draw, penalize, philox, probabilities
from tests.reference.generate import uniforms

CPU = torch.device("cpu")
ONES = 0xFFFFFFFF
BELOW_ONE = 1 - 2.0**-24  # the largest number that uniforms() can give


def table(*params: DrawParams) -> DrawTable:
    return DrawTable.of(params, CPU)


def normal_logits(rows: int, vocab: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def array(word: int) -> np.ndarray:
    return np.array([word])  # not a scalar: scalars warn on overflow


# Known answers from Random123, the library of Philox's authors (kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
@pytest.mark.parametrize("library", [torch.tensor, array])
def test_philox_gives_the_known_answers(counter, key, words, library) -> None:
    answer = philox(tuple(map(library, counter)), tuple(map(library, key)))
    assert tuple(word.item() for word in answer) == words


def test_uniforms_depend_on_seed_frame_and_codebook_only() -> None:
    seeds = [0, 1, 2**32, 2**64 - 1]
    block = uniforms(seeds, 0, 130, CPU)
    assert block.shape == (4, 130, 16)
    assert torch.equal(uniforms(seeds[2:], 64, 66, CPU), block[2:, 64:])
    assert block.min() >= 0
    assert block.max() < 1
    # 24 bits each: a few of 8320 coincide by chance.
    assert len(block.unique()) > 8310
    assert abs(float(block.mean()) - 0.5) < 0.02
    words = philox(tuple(map(torch.tensor, (7, 3, 0, 0))), (torch.tensor(0), torch.tensor(1)))
    assert float(block[2, 7, 3]) == (int(words[0]) >> 8) * 2.0**-24


@pytest.mark.parametrize(
    "params",
    [
        DrawParams(temperature=1.0, top_k=0),
        DrawParams(temperature=0.9, top_k=12),
        DrawParams(temperature=1.5, top_k=0, top_p=0.8),
    ],
)
def test_codes_are_drawn_with_their_probabilities(params: DrawParams) -> None:
    draws, vocab = 16_000, 40
    logits = normal_logits(1, vocab, seed=1)
    expected = draws * probabilities(logits, table(params))[0].double().numpy()
    uniform = uniforms(range(draws // 16), 3, 1, CPU).flatten()
    codes = draw(logits.expand(draws, vocab), table(*[params] * draws), uniform)
    counts = np.bincount(codes.numpy(), minlength=vocab)
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    squares = ((counts - expected)[common] ** 2 / expected[common]).sum()
    freedom = common.sum() - 1
    assert squares < freedom + 4 * np.sqrt(2 * freedom)  # four standard deviations; the seeds are fixed


@pytest.mark.parametrize("edge", [0, 39])
def test_the_extreme_uniforms_draw_no_impossible_code(edge: int) -> None:
    # The only possible ids are at one end, so that the other end is a run of zeros.
    logits = torch.full((3, 40), float("-inf"))
    logits[:, edge] = 1.0
    logits[1:, abs(edge - 1)] = 0.5
    params = [DrawParams(top_k=0), DrawParams(top_k=50), DrawParams(top_k=0, top_p=0.3)]
    for uniform in (0.0, 2.0**-24, 0.5, BELOW_ONE):
        codes = draw(logits, table(*params), torch.full((3,), uniform))
        assert torch.isfinite(logits[torch.arange(3), codes]).all(), (uniform, codes)


def test_the_last_uniform_draws_the_last_possible_code_at_full_size() -> None:
    logits = normal_logits(64, 3072, seed=2)
    logits[:, 2048:] = float("-inf")
    chances = probabilities(logits, table(*[DrawParams(top_k=50)] * 64))
    for uniform in (0.0, BELOW_ONE):
        codes = draw(logits, table(*[DrawParams(top_k=50)] * 64), torch.full((64,), uniform))
        assert (chances[torch.arange(64), codes] > 0).all()


def test_greedy_rows_and_sampled_rows_share_a_table() -> None:
    logits, uniform = normal_logits(6, 500, seed=3), uniforms([9], 0, 1, CPU)[0, 0, :6]
    params = [DrawParams(greedy=row % 2 == 0, temperature=2.0, top_k=0) for row in range(6)]
    codes = draw(logits, table(*params), uniform)
    assert torch.equal(codes[::2], logits[::2].argmax(-1))
    assert torch.equal(codes[1::2], draw(logits[1::2], table(*params[1::2]), uniform[1::2]))
    assert not torch.equal(codes[1::2], logits[1::2].argmax(-1))


def test_top_k_of_one_is_greedy() -> None:
    logits, uniform = normal_logits(16, 500, seed=4), uniforms([1], 0, 1, CPU)[0, 0]
    assert torch.equal(draw(logits, table(*[DrawParams(top_k=1)] * 16), uniform), logits.argmax(-1))


def test_the_likeliest_code_survives_the_smallest_top_p() -> None:
    logits, uniform = normal_logits(16, 500, seed=5), uniforms([1], 0, 1, CPU)[0, 0]
    assert torch.equal(draw(logits, table(*[DrawParams(top_k=0, top_p=1e-6)] * 16), uniform), logits.argmax(-1))


def test_a_row_in_a_batch_equals_the_row_alone() -> None:
    params = [
        DrawParams(),
        DrawParams(greedy=True),
        DrawParams(temperature=0.1, top_k=0),
        DrawParams(temperature=3.0, top_k=7),
        DrawParams(top_k=0, top_p=0.5),
        DrawParams(top_k=900, top_p=0.99),
    ]
    logits, uniform = normal_logits(len(params), 500, seed=6), uniforms([5], 2, 1, CPU)[0, 0, : len(params)]
    chances, codes = probabilities(logits, table(*params)), draw(logits, table(*params), uniform)
    for row, one in enumerate(params):
        only = slice(row, row + 1)
        assert torch.equal(chances[only], probabilities(logits[only], table(one)))
        assert torch.equal(codes[only], draw(logits[only], table(one), uniform[only]))


def test_settings_that_are_off_change_nothing() -> None:
    logits = normal_logits(1, 500, seed=7)
    plain = torch.softmax(logits, -1)
    for off in (DrawParams(temperature=1.0, top_k=0), DrawParams(temperature=1.0, top_k=500)):
        torch.testing.assert_close(probabilities(logits, table(off)), plain)
    sharp = probabilities(logits, table(replace(DrawParams(top_k=0), temperature=0.5)))
    assert sharp.max() > plain.max()


def test_the_penalty_makes_a_seen_code_less_likely_once() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, -2.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert penalize(logits, seen, torch.tensor([[2.0]])).tolist() == [[1.0, -4.0, 2.0, -2.0]]
    assert torch.equal(penalize(logits, seen, torch.tensor([[1.0]])), logits)
