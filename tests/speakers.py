"""Loaded tiny checkpoints for tests of refusals: a good request, a bad one, and the good one again."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from oscine import Oscine, Voice
from tests.conftest import CheckpointMaker

RATE = 24000
WIDTH = 96  # of the tiny 1.7B talker
SHORT = {"max_new_tokens": 3, "seed": 7}  # two frames


def noise(seconds: float, rate_hz: int = RATE) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, int(seconds * rate_hz)).astype(np.float32)


class Speakers:
    """Checkpoints by name ("1b7-base"), each loaded once."""

    def __init__(self, checkpoint: CheckpointMaker) -> None:
        self.checkpoint = checkpoint
        self.load = cache(self._load)
        self.voice = cache(self._clone)
        self.first_codes = cache(self._codes)

    def folder(self, name: str) -> Path:
        return self.checkpoint(*name.split("-"))

    def _load(self, name: str) -> Oscine:
        return Oscine(self.folder(name), device="cpu", slots=1)  # the warm-up of more takes longer than these tests

    def _clone(self, name: str) -> Voice:
        return self.load(name).clone((noise(0.5), RATE), "hello you")

    def fields(self, name: str) -> dict[str, Any]:
        """The fields that a request to this checkpoint needs."""
        kind = name.partition("-")[2]
        if kind == "base":
            return SHORT | {"voice": self.voice(name)}
        return SHORT | ({"instructions": "a calm voice"} if kind == "voice_design" else {})

    def _codes(self, name: str) -> np.ndarray:
        return self.load(name).speak("hello there", **self.fields(name)).codes

    def check_unchanged(self, name: str) -> None:
        before = self.first_codes(name)
        assert before.shape == (2, 16)
        np.testing.assert_array_equal(self._codes(name), before)


def check_error(error: BaseException, kind: type, param: str | None, messages: tuple[str, ...]) -> None:
    assert type(error) is kind, repr(error)
    assert getattr(error, "param", None) == param
    for message in messages:
        assert message in str(error)
    assert "\n" not in str(error)
