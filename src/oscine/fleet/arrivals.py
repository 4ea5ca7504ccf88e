"""Arrivals of requests: rates that change, lengths with a long tail, voices of which a few are hot."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from oscine.audio.pcm import FRAME_RATE_HZ

_FRAMES_PER_TEXT_ID = 4.0
_PROMPT_ROWS = 12  # of a prompt beside its text
Rate = Callable[[float], float]  # requests per second at a time


@dataclass(frozen=True, slots=True)
class SpeechSize:
    """One request: what its cost depends on."""

    frames: int
    text_ids: int
    prompt_rows: int
    voice: str = ""


Arrival = tuple[float, SpeechSize]  # (seconds, what is asked for)


@dataclass(frozen=True, slots=True)
class Requests:
    """How long requests are, and whose voices they ask for."""

    mean_s: float = 4.5  # seconds of speech
    spread: float = 0.6  # sigma of the lognormal distribution; 0: all are equal
    longest_s: float = 60.0
    voices: int = 9
    hot: float = 1.0  # exponent of Zipf's law; 0: all voices alike

    def draw(self, rng: random.Random) -> SpeechSize:
        seconds = rng.lognormvariate(math.log(self.mean_s) - self.spread**2 / 2, self.spread)
        frames = max(3, round(min(seconds, self.longest_s) * FRAME_RATE_HZ))
        text_ids = max(1, round(frames / _FRAMES_PER_TEXT_ID))
        weights = accumulate(rank**-self.hot for rank in range(1, self.voices + 1))
        voice = rng.choices(range(self.voices), cum_weights=list(weights))[0]
        return SpeechSize(frames, text_ids, _PROMPT_ROWS + text_ids, f"voice {voice}")


def poisson(rate: Rate, most: float, seconds: float, requests: Requests, seed: int) -> Iterator[Arrival]:
    """Yields the arrivals of a Poisson process whose rate changes, at most `most` requests per second."""
    rng, at_s = random.Random(seed), 0.0
    while (at_s := at_s + rng.expovariate(most)) < seconds:
        if rng.random() * most < rate(at_s):
            yield at_s, requests.draw(rng)


def day(mean: float, day_s: float, swing: float = 0.6) -> Rate:
    """The rate of a day that begins at its quietest hour."""
    return lambda at_s: mean * (1 - swing * math.cos(2 * math.pi * at_s / day_s))


def burst(base: float, peak: float, from_s: float, to_s: float) -> Rate:
    return lambda at_s: peak if from_s <= at_s < to_s else base
