"""Sampling probabilities equal the official ones: its logits processors run on the same logits as ours."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from oscine import SpeechRequest
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import DrawParams, SamplingParams
from oscine.runner.sampling import DrawTable, penalize, probabilities
from tests.conftest import CheckpointMaker
from tests.oracle.client import Official
from tests.reference.generate import generate, uniforms

pytestmark = pytest.mark.slow

EOS, CODES, CODE_VOCAB = 2150, 2048, 3072
CPU = torch.device("cpu")


def random_logits(rows: int, vocab: int, seed: int) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal((rows, vocab))).astype(np.float32)


# All combinations in one table: rows must not affect each other.
DRAWS = [
    DrawParams(temperature=temperature, top_k=top_k, top_p=top_p)
    for temperature, top_k, top_p in product((0.2, 0.9, 1.0, 1.7), (0, 1, 5, 50, 5000), (1.0, 0.95, 0.5, 0.01))
]


def warp_settings(draws: Sequence[DrawParams]) -> dict[str, list[float]]:
    return {name: [getattr(draw, name) for draw in draws] for name in ("temperature", "top_k", "top_p")}


def our_talker_probabilities(
    logits: np.ndarray, history: list[list[int]], draws: Sequence[DrawParams], penalty: list[float]
) -> np.ndarray:
    seen = torch.zeros(logits.shape, dtype=torch.bool)
    for row, past in enumerate(history):
        seen[row, past] = True
    values = penalize(torch.from_numpy(logits), seen, torch.tensor(penalty)[:, None])
    may_end = torch.tensor([len(past) >= 2 for past in history])
    values[:, CODES:EOS] = values[:, EOS + 1 :] = -torch.inf
    values[~may_end, EOS] = -torch.inf
    return probabilities(values, DrawTable.of(draws, CPU)).numpy()


def check_same_probabilities(mine: np.ndarray, theirs: np.ndarray) -> None:
    np.testing.assert_array_equal(mine > 0, theirs > 0)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_code_0_has_the_official_probabilities(official: Official) -> None:
    logits = random_logits(len(DRAWS), CODE_VOCAB, seed=0)
    logits[::3, EOS] = 12.0  # likely, whether it is allowed or not
    rng = np.random.default_rng(1)
    history = [rng.integers(0, CODES, row % 7).tolist() * 2 for row in range(len(DRAWS))]
    history[1::7] = [[5]] * len(history[1::7])  # after one code, end-of-speech is not allowed yet
    penalty = [(1.0, 1.05, 1.5, 0.8)[row % 4] for row in range(len(DRAWS))]
    answer = official.call("warp", logits=logits, history=history, repetition_penalty=penalty, **warp_settings(DRAWS))
    check_same_probabilities(our_talker_probabilities(logits, history, DRAWS, penalty), answer["probabilities"])


def test_codes_1_to_15_have_the_official_probabilities(official: Official) -> None:
    logits = random_logits(len(DRAWS), CODES, seed=2)
    answer = official.call("warp", logits=logits, history=[[1, 2]] * len(DRAWS), talker=False, **warp_settings(DRAWS))
    mine = probabilities(torch.from_numpy(logits), DrawTable.of(DRAWS, CPU)).numpy()
    check_same_probabilities(mine, answer["probabilities"])


def test_ties_with_the_kth_logit_are_kept_as_officially(official: Official) -> None:
    draws = [DrawParams(temperature=0.9, top_k=top_k) for top_k in (1, 2, 3, 20, 50, 300)]
    logits = np.round(random_logits(len(draws), CODES, seed=3))
    answer = official.call("warp", logits=logits, history=[[]] * len(draws), talker=False, **warp_settings(draws))
    mine = probabilities(torch.from_numpy(logits), DrawTable.of(draws, CPU)).numpy()
    assert ((mine > 0).sum(1) > [draw.top_k for draw in draws]).any()
    check_same_probabilities(mine, answer["probabilities"])


def test_a_nucleus_of_equal_probabilities_has_the_official_size(official: Official) -> None:
    draws = [DrawParams(temperature=1.0, top_k=0, top_p=part / 20) for part in range(1, 20)]
    for equals in (2, 4, 5, 8, 10):
        logits = np.full((len(draws), CODES), -np.inf, np.float32)
        logits[:, :equals] = 0
        answer = official.call("warp", logits=logits, history=[[]] * len(draws), talker=False, **warp_settings(draws))
        mine = probabilities(torch.from_numpy(logits), DrawTable.of(draws, CPU)).numpy()
        # Fifths and tenths have no exact binary form: their sum may equal 1 - top_p to the last digit.
        assert ((mine > 0).sum(1) == (answer["probabilities"] > 0).sum(1)).all(), equals


def test_every_sampled_code_follows_from_its_uniform_and_the_official_probabilities(
    official: Official, checkpoints: CheckpointMaker, vocabulary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits of a whole utterance go to the official processors; the uniform number of (seed, frame, codebook) must
    fall into the sampled code's interval of their cumulative distribution."""
    model = load_model(checkpoints("1b7", "custom_voice"), device=CPU, dtype=torch.float32)
    logits: dict[str, list[torch.Tensor]] = {"talker": [], "predictor": []}

    def record(module: torch.nn.Module, method: str, kept: list[torch.Tensor]) -> None:
        original = getattr(module, method)
        monkeypatch.setattr(module, method, lambda *args: kept.append(original(*args).clone()) or kept[-1].clone())

    record(model.talker, "logits", logits["talker"])
    record(model.predictor, "first", logits["predictor"])
    record(model.predictor, "next", logits["predictor"])
    first, rest = DrawParams(temperature=1.1, top_k=200, top_p=0.97), DrawParams(temperature=0.8, top_k=30, top_p=0.9)
    sampling = SamplingParams(first, rest, repetition_penalty=1.3, max_new_tokens=25, seed=2**40 + 7)
    builder = PromptBuilder(model.config, Tokenizer.from_folder(vocabulary))
    prompt = builder.build(SpeechRequest(text="Hello there, how are you today?", voice="ryan"))
    codes = torch.cat([step.codes for step in generate(model, [prompt], [sampling])]).numpy()
    assert len(codes) == 24
    uniform = uniforms([sampling.seed], 0, 24, CPU)[0].numpy()

    history = [codes[:frame, 0].tolist() for frame in range(24)]
    talker = official.call(
        "warp",
        logits=torch.cat(logits["talker"][:24]).numpy(),
        history=history,
        repetition_penalty=sampling.repetition_penalty,
        **warp_settings([first] * 24),
    )["probabilities"]
    predictor = official.call(
        "warp", logits=torch.cat(logits["predictor"]).numpy(), history=[[]] * 360, talker=False,
        **warp_settings([rest] * 360),
    )["probabilities"].reshape(24, 15, CODES)  # fmt: skip
    for frame, book in np.ndindex(codes.shape):
        chances = (talker[frame] if book == 0 else predictor[frame, book - 1]).astype(np.float64)
        code, target = codes[frame, book], uniform[frame, book]
        below = chances[:code].sum()
        assert chances[code] > 0
        assert below - 1e-5 <= target <= below + chances[code] + 1e-5, (frame, book)
