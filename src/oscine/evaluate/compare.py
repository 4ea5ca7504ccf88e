"""Two results of the same texts and seeds: what differs, by how much, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from oscine.audio import read_clip
from oscine.bench.record import Result
from oscine.evaluate.bootstrap import Terms, difference_interval, sign_chance, widened
from oscine.evaluate.recording import Evaluation, Recording
from oscine.evaluate.score import FIGURES, Figure, Mark, by_text, mark_all, shown, shown_range
from oscine.types import RequestError

# Fewer texts drawn again and again are always the same few: their intervals are too narrow to be believed.
MIN_TEXTS = 8
# A flag on few texts: drawn again and again, some of those few are nearly always among them.
CHANCE = 0.05

# What else judged: figure, and its name among the ears.
_JUDGES = {"dnsmos": "dnsmos", "similarity": "speaker"}

About = dict[str, Any]  # a judge, a clip: its name, and what makes it another one
Verdict = Literal["none", "first worse", "second worse", "differs", "too few"]


@dataclass(frozen=True, slots=True)
class Difference:
    figure: Figure
    first: float
    second: float
    low: float  # of the second less the first
    high: float
    texts: int
    chance: float = 0.0  # for a flag: how likely so many more of them on one side are, if neither is worse

    @property
    def by(self) -> float:
        return self.second - self.first

    @property
    def verdict(self) -> Verdict:
        if self.texts < MIN_TEXTS:
            return "too few"
        if self.low <= 0 <= self.high or self.chance > CHANCE:
            return "none"
        if not self.figure.better:
            return "differs"
        return "second worse" if self.by * self.figure.better < 0 else "first worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    names: tuple[str, str]
    differences: tuple[Difference, ...]
    recordings: int
    equal: int  # no sample differs by more than one step of 16 bits, which is how exact a batch is
    settings: dict[str, tuple[Any, Any]]  # what was asked differently
    notes: tuple[str, ...] = ()  # what is not compared, and what is left to chance

    def as_dict(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "recordings": self.recordings,
            "equal_recordings": self.equal,
            "settings": self.settings,
            "notes": self.notes,
            "differences": {
                one.figure.key: {
                    **{name: getattr(one, name) for name in ("first", "second", "by", "low", "high", "texts")},
                    "verdict": one.verdict,
                }
                for one in self.differences
            },
        }


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    _check(first, second)
    marks = mark_all(first.recordings), mark_all(second.recordings)
    differences: list[Difference] = []
    notes = _seed_notes(first, second)
    for figure in FIGURES:
        if why := _unjudged(figure, first, second):
            notes.append(f"{figure.title.split(',')[0]} is not compared: {why}")
        elif found := _difference(figure, first.recordings, second.recordings, *marks):
            differences.append(found)
    return Comparison(
        _names(first, second),
        tuple(differences),
        len(first.recordings),
        sum(_sound_equal(first, second, *pair) for pair in _pairs(first, second)),
        _settings(first.result, second.result),
        tuple(notes),
    )


def _pairs(first: Evaluation, second: Evaluation) -> Iterator[tuple[Recording, Recording]]:
    others = {(one.text, one.take): one for one in second.recordings}
    return ((one, others[one.text, one.take]) for one in first.recordings)


def _sound_equal(first: Evaluation, second: Evaluation, one: Recording, other: Recording) -> bool:
    """False also where the sound is no longer beside its result."""
    if one.file is None or other.file is None or one.audio_s != other.audio_s:
        return False
    paths = first.folder / one.file, second.folder / other.file
    if not (paths[0].exists() and paths[1].exists()):
        return False
    clips = [read_clip(path) for path in paths]
    alike = clips[0].rate_hz == clips[1].rate_hz and len(clips[0].samples) == len(clips[1].samples)
    return alike and bool(np.abs(clips[0].samples - clips[1].samples).max(initial=0.0) < 1.5 / 32768)


def _check(first: Evaluation, second: Evaluation) -> None:
    names = _names(first, second)
    for name, side in zip(names, (first, second), strict=True):
        if not side.is_heard:
            raise RequestError(f"{name} has not been scored yet: oscine eval score {side.folder}", "path")
    asked = _seeds(first), _seeds(second)
    alone = [sorted(side.keys() - other.keys()) for side, other in (asked, asked[::-1])]
    if alone[0] or alone[1]:
        example = (alone[0] or alone[1])[0][0]
        raise RequestError(
            f"different texts: {len(alone[0])} recordings only in {names[0]}, {len(alone[1])} only in {names[1]} "
            f"(such as {example[:60]!r}); record both with the same --texts, --lengths and --repeat",
            "path",
        )
    _check_seeds(names, *asked)
    one, other = (side.result["figures"]["ears"]["recogniser"] for side in (first, second))
    if apart := _apart(one, other, besides=("name", "version")):
        raise RequestError(
            f"heard by different recognisers ({apart}); score both with the same one: "
            "oscine eval score FOLDER --recogniser ... --device ...",
            "path",
        )


def _seeds(side: Evaluation) -> dict[tuple[str, int], int | None]:
    """By text and take. None: the server was sent none."""
    return {(one.text, one.take): one.seed for one in side.recordings}


def _check_seeds(
    names: tuple[str, str], first: dict[tuple[str, int], int | None], second: dict[tuple[str, int], int | None]
) -> None:
    for name, side, other in ((names[0], first, second), (names[1], second, first)):
        if any(seed is None and other[key] is not None for key, seed in side.items()):
            raise RequestError(
                f"{name} was recorded without seeds and the other with them; record both from servers that take seeds, "
                """or both without: --extra '{"seed": null}'""",
                "path",
            )
    reseeded = sum(seed != second[key] for key, seed in first.items())
    if reseeded:
        raise RequestError(
            f"{reseeded} recordings were asked with other seeds: another --seed, or the texts in another order; record "
            "both with the same --seed and the same --texts, in one order",
            "path",
        )


def _seed_notes(first: Evaluation, second: Evaluation) -> list[str]:
    """Checked before: where one side has no seed, the other has none."""
    if all(seed is not None for side in (first, second) for seed in _seeds(side).values()):
        return []
    return ["no seeds were sent: the server chose its own, so the sides also differ by chance"]


def _unjudged(figure: Figure, first: Evaluation, second: Evaluation) -> str | None:
    """Why a judge's figure cannot be compared; None also where nobody was asked."""
    judge = _JUDGES.get(figure.key)
    if judge is None:
        return None
    sides = first.result["figures"], second.result["figures"]
    judges: list[About | None] = [side["ears"][judge] for side in sides]
    if judges[0] is None or judges[1] is None:
        there = [name for name, one in zip(_names(first, second), judges, strict=True) if one is not None]
        return f"only {there[0]} was judged so" if there else None
    if apart := _apart(judges[0], judges[1]):
        return f"judged by different models ({apart})"
    if figure.key == "similarity" and (apart := _apart(sides[0]["reference"] or {}, sides[1]["reference"] or {})):
        return f"measured against different clips ({apart})"
    return None


def _apart(one: About, other: About, besides: Sequence[str] = ("name",)) -> str:
    """What differs; nothing if that is only what does not matter, `besides`."""
    pairs = {name: (one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    if not differing.keys() - set(besides):
        return ""
    return "; ".join(f"{name}: {pair[0]} and {pair[1]}" for name, pair in differing.items())


def _difference(
    figure: Figure,
    first: Sequence[Recording],
    second: Sequence[Recording],
    first_marks: Sequence[Mark],
    second_marks: Sequence[Mark],
) -> Difference | None:
    """Over the takes to which the figure applies on both sides."""
    one, other = by_text(figure, first, first_marks), by_text(figure, second, second_marks)
    texts: dict[str, tuple[Terms, Terms]] = {}
    takes = 0
    for key, terms in one.items():
        if terms is not None and (paired := other[key]) is not None:
            takes += 1
            sums = texts.get(key[0], ((0.0, 0.0), (0.0, 0.0)))
            texts[key[0]] = _plus(sums[0], terms), _plus(sums[1], paired)
    sides = [pair[0] for pair in texts.values()], [pair[1] for pair in texts.values()]
    of = [sum(terms[1] for terms in side) for side in sides]
    if not of[0] or not of[1]:
        return None
    values = [sum(terms[0] for terms in side) / total for side, total in zip(sides, of, strict=True)]
    low, high = widened(*difference_interval(*sides), len(texts), figure.step(takes, min(of)), least=-1.0)
    chance = sign_chance(*sides) if figure.is_flag else 0.0
    return Difference(figure, values[0], values[1], low, high, len(texts), chance)


def _plus(one: Terms, other: Terms) -> Terms:
    return one[0] + other[0], one[1] + other[1]


def _names(first: Evaluation, second: Evaluation) -> tuple[str, str]:
    if first.name != second.name:
        return first.name, second.name
    folders = first.folder.resolve().name, second.folder.resolve().name
    return folders if folders[0] != folders[1] else ("first", "second")


def _settings(first: Result, second: Result) -> dict[str, tuple[Any, Any]]:
    sides = [
        {
            "machine": result["machine"],
            "commit": result["commit"],
            "target": result["figures"]["target"]["preset"],
            "models": ", ".join(result["figures"]["target"]["served"]),
            **result["figures"]["target"]["fields"],
            "concurrency": result["figures"]["concurrency"],
            "recogniser's version": result["figures"]["ears"]["recogniser"].get("version"),  # older results have none
        }
        for result in (first, second)
    ]
    names = dict.fromkeys([*sides[0], *sides[1]])
    pairs = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def conclusion(comparison: Comparison) -> list[str]:
    """In plain words."""
    lines = []
    one, other = comparison.names
    if comparison.equal:
        many = "all" if comparison.equal == comparison.recordings else f"{comparison.equal} of"
        lines.append(f"{many} {comparison.recordings} recordings are the same sound, within one step of 16 bits")
    told = [found for found in comparison.differences if found.verdict not in ("none", "too few")]
    for found in told:
        worse = {"first worse": f"{one} is worse", "second worse": f"{other} is worse"}.get(
            found.verdict, "they differ"
        )
        spread = shown_range(found.figure, found.low, found.high, signed=True)
        lines.append(f"{worse} in {found.figure.title}: {shown(found.figure, found.by, signed=True)} ({spread})")
    few = [found.figure.title for found in comparison.differences if found.verdict == "too few"]
    if len(few) == len(comparison.differences):
        lines.append(f"fewer than {MIN_TEXTS} texts: nothing can be said about their differences")
    elif few:
        lines.append(f"fewer than {MIN_TEXTS} texts for {' and '.join(few)}: nothing can be said about that")
    if not told and len(few) < len(comparison.differences):
        lines.append(f"no difference beyond noise: every {'other ' if few else ''}95 % interval holds 0")
    return [*lines, *comparison.notes]
