"""The reference path: a row gives the same codes alone and in any batch, whenever other rows end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from oscine.audio.pcm import CODEBOOKS
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import DrawParams, SamplingParams, SpeechRequest, TextMode
from oscine.types import FinishReason, Prompt
from tests.conftest import CheckpointMaker
from tests.reference.generate import generate
from tests.variants import change_json, linked

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
GREEDY = DrawParams(greedy=True)
Spoken = tuple[np.ndarray, FinishReason]  # codes [frames, 16], and why there are no more


class TinySpeaker:
    """A tiny checkpoint and its prompts."""

    def __init__(self, folder: Path) -> None:
        self.model: SpeechModel = load_model(folder, device=CPU)
        self._builder = PromptBuilder(self.model.config, Tokenizer.from_folder(folder))

    def prompt(self, text: str, text_mode: TextMode = "whole", voice: str = "ryan", language: str = "auto") -> Prompt:
        return self._builder.build(SpeechRequest(text=text, voice=voice, language=language, text_mode=text_mode))

    def speak(self, prompts: Sequence[Prompt], sampling: Sequence[SamplingParams]) -> list[Spoken]:
        frames: list[list[np.ndarray]] = [[] for _ in prompts]
        reasons: dict[int, FinishReason] = {}
        for step in generate(self.model, prompts, sampling):
            for row, reason in step.ended:
                assert row not in reasons
                reasons[row] = reason
            assert step.codes.shape == (len(step.rows), CODEBOOKS)
            for row, codes in zip(step.rows, step.codes.numpy(), strict=True):
                assert row not in reasons  # an ended row has no more frames
                frames[row].append(codes)
        assert sorted(reasons) == list(range(len(prompts)))
        return [(np.stack(made), reasons[row]) for row, made in enumerate(frames)]

    def alone(self, prompt: Prompt, sampling: SamplingParams) -> Spoken:
        return self.speak([prompt], [sampling])[0]


@pytest.fixture(scope="module")
def speaker(small_checkpoints: CheckpointMaker) -> TinySpeaker:
    """Ends about one row in ten at every frame."""
    return TinySpeaker(small_checkpoints("1b7", "custom_voice", eos_gain=3.0))


@pytest.fixture(scope="module")
def endless(small_checkpoints: CheckpointMaker) -> TinySpeaker:
    """Never draws the end of speech."""
    return TinySpeaker(small_checkpoints("0b6", "custom_voice", eos_gain=0.0))


def greedy(cap: int) -> SamplingParams:
    return SamplingParams(GREEDY, GREEDY, max_new_tokens=cap)


def seeded(seed: int, cap: int = 20) -> SamplingParams:
    return SamplingParams(max_new_tokens=cap, seed=seed)


def assert_same(left: Spoken, right: Spoken) -> None:
    np.testing.assert_array_equal(left[0], right[0])
    assert left[1] == right[1]


def test_a_row_in_a_batch_equals_the_row_alone(speaker: TinySpeaker) -> None:
    """Lengths, text modes, voices, greedy and seeded rows and caps, all mixed."""
    prompts = [
        speaker.prompt("hello you"),
        speaker.prompt("hello you", "streaming", "eric"),
        speaker.prompt("the voice and the speaking voice " * 4, language="german"),
        speaker.prompt("a", "streaming", "dylan"),
        speaker.prompt("one two three", "streaming", language="english"),
        speaker.prompt("hello you"),
    ]
    hot = DrawParams(temperature=1.3, top_k=0, top_p=0.9)
    sampling = [
        greedy(16),
        greedy(9),
        seeded(1, cap=17),
        seeded(2**63 + 5, cap=2),
        replace(seeded(3), first=hot, rest=GREEDY, repetition_penalty=1.4),
        seeded(1, cap=3),
    ]
    together = speaker.speak(prompts, sampling)
    for row, spoken in enumerate(together):
        assert_same(spoken, speaker.alone(prompts[row], sampling[row]))
    backwards = speaker.speak(prompts[::-1], sampling[::-1])
    for spoken, reversed_spoken in zip(together, backwards[::-1], strict=True):
        assert_same(spoken, reversed_spoken)


def test_rows_that_end_early_do_not_change_the_others(speaker: TinySpeaker) -> None:
    prompts = [speaker.prompt(text, "streaming") for text in ("one", "hello you", "three", "the voice", "and", "six")]
    sampling = [seeded(row, cap=24) for row in range(6)]
    together = speaker.speak(prompts, sampling)
    assert len({len(codes) for codes, _ in together}) >= 3  # the rows end at different times
    for row, spoken in enumerate(together):
        assert_same(spoken, speaker.alone(prompts[row], sampling[row]))


def test_codes_depend_on_the_seed_alone(endless: TinySpeaker) -> None:
    prompt = endless.prompt("hello you")
    first, again, other = endless.speak([prompt] * 3, [seeded(11, 8), seeded(11, 8), seeded(12, 8)])
    assert_same(first, again)
    assert not np.array_equal(first[0], other[0])
    # Both halves of the seed count.
    high, low = endless.speak([prompt] * 2, [seeded(11 + 2**32, 8), seeded(11, 8)])
    assert not np.array_equal(high[0], low[0])
    assert_same(low, first)


def test_a_greedy_row_ignores_its_seed(endless: TinySpeaker) -> None:
    prompt = endless.prompt("hello you")
    first, other = endless.speak([prompt] * 2, [greedy(8), replace(greedy(8), seed=99)])
    assert_same(first, other)


@pytest.mark.parametrize("cap", [2, 3, 4, 17])
def test_max_new_tokens_of_n_gives_n_minus_1_frames(endless: TinySpeaker, cap: int) -> None:
    codes, reason = endless.alone(endless.prompt("hello you"), seeded(1, cap))
    assert (len(codes), reason) == (cap - 1, "length")


def test_a_larger_max_new_tokens_only_continues(endless: TinySpeaker) -> None:
    prompt = endless.prompt("hello you", "streaming")
    short, long = endless.speak([prompt] * 2, [seeded(5, 6), seeded(5, 14)])
    np.testing.assert_array_equal(long[0][:5], short[0])


def test_the_finish_reason_is_stop_or_length(speaker: TinySpeaker) -> None:
    spoken = speaker.speak([speaker.prompt("hello you")] * 16, [seeded(seed, cap=24) for seed in range(16)])
    stopped = [codes for codes, reason in spoken if reason == "stop"]
    assert len(stopped) >= 4
    assert all(len(codes) < 24 for codes in stopped)
    assert all(len(codes) == 23 for codes, reason in spoken if reason == "length")


def test_no_speech_ends_before_its_third_draw(small_checkpoints: CheckpointMaker) -> None:
    eager = TinySpeaker(
        small_checkpoints("1b7", "custom_voice", eos_gain=50.0)
    )  # about every second draw is the end of speech
    prompts = [eager.prompt(text) for text in ("one", "two", "three", "four", "five", "six", "seven", "eight")]
    spoken = eager.speak(prompts, [greedy(9)] * 8)
    assert min(len(codes) for codes, _ in spoken) == 2
    assert sum(len(codes) == 2 for codes, _ in spoken) >= 2


def test_frames_hold_codec_codes_only(speaker: TinySpeaker) -> None:
    prompt, hot = speaker.prompt("hello you"), DrawParams(temperature=5.0, top_k=0)
    wild = [replace(seeded(seed, cap=12), first=hot, rest=hot) for seed in range(8)]
    for codes, _ in speaker.speak([prompt] * 8, wild):
        assert codes.min() >= 0
        assert codes.max() < 2048


def test_the_models_positions_limit_every_row(small_checkpoints: CheckpointMaker, tmp_path: Path) -> None:
    folder = linked(small_checkpoints("0b6", "custom_voice", eos_gain=0.0), tmp_path / "short")
    change_json(folder / "config.json", "talker_config.max_position_embeddings", 40)
    short = TinySpeaker(folder)
    prompts = [short.prompt("hello you"), short.prompt("one two three four")]
    for prompt, (codes, reason) in zip(prompts, short.speak(prompts, [seeded(1, cap=500)] * 2), strict=True):
        assert reason == "length"
        assert 40 - prompt.rows - 2 <= len(codes) <= 40 - prompt.rows


def test_no_prompts_give_no_steps(speaker: TinySpeaker) -> None:
    assert list(generate(speaker.model, [], [])) == []
