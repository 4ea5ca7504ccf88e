"""Generates texts, their order and their arrival times from a seed, so that every server gets the same requests."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from oscine.errors import RequestError, unknown_choice

SETS = ("english", "chinese", "mixed")
LENGTHS = ("short", "medium", "long")  # about 1.5, 5 and 20 s of speech

Phase = Literal["warmup", "measured"]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    text: str
    seed: int
    index: int
    phase: Phase = "measured"


@dataclass(frozen=True, slots=True)
class Workload:
    """An endless sequence of requests; each pass over the texts has its own order. Warm-up and measurement have
    separate orders, so the measured texts do not depend on the length of the warm-up."""

    name: str
    texts: tuple[str, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.texts:
            raise RequestError(f"the workload {self.name!r} is empty; it needs at least one text", "texts")

    def requests(self, phase: Phase = "measured") -> Iterator[PlannedRequest]:
        seeds = random.Random(f"{self.seed}/{phase}/seeds")
        order = list(range(len(self.texts)))
        for index in itertools.count():
            place = index % len(order)
            if place == 0:
                random.Random(f"{self.seed}/{phase}/{index}").shuffle(order)
            yield PlannedRequest(self.texts[order[place]], seeds.getrandbits(31), index, phase)


def builtin_texts(name: str, lengths: Iterable[str]) -> tuple[str, ...]:
    sections: dict[str, list[str]] = {}
    for line in resources.files(__package__).joinpath("texts", f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), [])
        elif line:
            section.append(line)
    lengths = tuple(lengths)
    for length in lengths:
        if length not in sections:
            raise RequestError(unknown_choice("length", length, sections), "lengths")
    return tuple(text for length in lengths for text in sections[length])


def file_texts(path: Path) -> tuple[str, ...]:
    """Reads one text per line, without empty lines and lines that start with #."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {str(path)!r} as UTF-8 text: {error}", "texts") from None
    texts = tuple(line for line in lines if line and not line.startswith("#"))
    if not texts:
        raise RequestError(f"{str(path)!r} has no texts; write one text per line", "texts")
    return texts


def load_workload(texts: str, lengths: Iterable[str] = ("medium",), seed: int = 0) -> Workload:
    """Loads `texts`, the name of a built-in set or a file."""
    if texts in SETS:
        lengths = tuple(lengths)
        return Workload(f"{texts}, {' + '.join(lengths)}", builtin_texts(texts, lengths), seed)
    path = Path(texts)
    if not path.exists():
        raise RequestError(unknown_choice("text set", texts, SETS) + "; or pass an existing file", "texts")
    return Workload(path.name, file_texts(path), seed)


def arrivals(rate_per_s: float, seed: int = 0) -> Iterator[float]:
    """Yields arrival times in seconds from the start: a Poisson process, the same for the same rate and seed."""
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise RequestError(f"a rate must be a number of requests per second above 0, got {rate_per_s!r}", "rate")
    draw = random.Random(f"{seed}/arrivals").random
    at_s = 0.0
    while True:
        at_s += -math.log(1.0 - draw()) / rate_per_s
        yield at_s
