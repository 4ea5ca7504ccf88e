"""Compares two evaluations of the same texts and seeds: differences and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from oscine.audio.clips import read_clip
from oscine.errors import RequestError
from oscine_eval.bootstrap import add, difference_interval, sign_test, widened
from oscine_eval.recording import Evaluation, Recording
from oscine_eval.score import FIGURES, Figure, Score, Take, by_take, by_text, score_all, shown, shown_range

MIN_TEXTS = 8  # the bootstrap interval of fewer texts is too narrow
MAX_CHANCE = 0.05  # of the sign test: the bootstrap interval of a rare flag is too narrow

# Figures of other models than the recognizer, and the model's key in the result.
_MODELS = {"dnsmos": "dnsmos", "similarity": "speaker"}

Verdict = Literal["none", "first worse", "second worse", "differs", "too few"]
Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Difference:
    figure: Figure
    first: float
    second: float
    low: float  # of the second minus the first
    high: float
    texts: int
    chance: float = 0.0  # p-value of the sign test, for a flag

    @property
    def by(self) -> float:
        return self.second - self.first

    @property
    def verdict(self) -> Verdict:
        if self.texts < MIN_TEXTS:
            return "too few"
        if self.low <= 0 <= self.high or self.chance > MAX_CHANCE:
            return "none"
        if not self.figure.better:
            return "differs"
        return "second worse" if self.by * self.figure.better < 0 else "first worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    names: Names
    differences: tuple[Difference, ...]
    recordings: int
    equal: int  # recordings in which no sample differs by more than one step of 16 bits, the accuracy of batching
    settings: dict[str, tuple[Any, Any]]  # that differ
    notes: tuple[str, ...] = ()  # figures that are not compared, and missing seeds

    def as_dict(self) -> dict[str, Any]:
        fields = ("first", "second", "by", "low", "high", "texts", "verdict")
        return {
            "names": self.names,
            "recordings": self.recordings,
            "equal_recordings": self.equal,
            "settings": self.settings,
            "notes": self.notes,
            "differences": {one.figure.key: {name: getattr(one, name) for name in fields} for one in self.differences},
        }


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    names = _names(first, second)
    notes = _check(names, first, second)
    scores = score_all(first.recordings), score_all(second.recordings)
    differences: list[Difference] = []
    for figure in FIGURES:
        if reason := _not_comparable(figure, names, first, second):
            notes.append(f"{figure.title.split(',')[0]} is not compared: {reason}")
        elif found := _difference(figure, first.recordings, second.recordings, *scores):
            differences.append(found)
    others = {(one.text, one.take): one for one in second.recordings}
    return Comparison(
        names,
        tuple(differences),
        len(first.recordings),
        sum(_has_equal_audio(first, second, one, others[one.text, one.take]) for one in first.recordings),
        _differing(_settings(first), _settings(second)),
        tuple(notes),
    )


def _names(first: Evaluation, second: Evaluation) -> Names:
    if first.name != second.name:
        return first.name, second.name
    folders = first.folder.resolve().name, second.folder.resolve().name
    return folders if folders[0] != folders[1] else ("first", "second")


def _has_equal_audio(first: Evaluation, second: Evaluation, one: Recording, other: Recording) -> bool:
    """Whether both recordings are equal; False also if the audio files are gone."""
    if one.file is None or other.file is None or one.audio_s != other.audio_s:
        return False
    paths = first.folder / one.file, second.folder / other.file
    if not all(path.exists() for path in paths):
        return False
    a, b = map(read_clip, paths)
    if a.rate_hz != b.rate_hz or len(a.samples) != len(b.samples):
        return False
    return bool(np.abs(a.samples - b.samples).max(initial=0.0) < 1.5 / 32768)


# --- what can be compared ---


def _check(names: Names, first: Evaluation, second: Evaluation) -> list[str]:
    """Raises if the two cannot be compared; returns notes on seeds."""
    for name, side in zip(names, (first, second), strict=True):
        if side.figures["transcriber"] is None:
            raise RequestError(f"{name} has not been scored yet: oscine eval score {side.folder}", "path")
    seeds = _seeds(first), _seeds(second)
    only = [sorted(side.keys() - other.keys()) for side, other in (seeds, seeds[::-1])]
    if only[0] or only[1]:
        example = (only[0] or only[1])[0][0]
        raise RequestError(
            f"different texts: {len(only[0])} recordings only in {names[0]}, {len(only[1])} only in {names[1]} "
            f"(such as {example[:60]!r}); record both with the same --texts, --lengths and --repeat",
            "path",
        )
    _check_seeds(names, *seeds)
    one, other = (side.figures["transcriber"]["recognizer"] for side in (first, second))
    if difference := _model_difference(one, other, ignored=("name", "version")):
        raise RequestError(
            f"transcribed by different recognizers ({difference}); score both with the same one: "
            "oscine eval score FOLDER --recognizer ... --device ...",
            "path",
        )
    if None in seeds[0].values():
        return ["no seeds were sent: the server chose its own, so the sides also differ by chance"]
    return []


def _seeds(side: Evaluation) -> dict[Take, int | None]:
    return {(one.text, one.take): one.seed for one in side.recordings}


def _check_seeds(names: Names, first: dict[Take, int | None], second: dict[Take, int | None]) -> None:
    for name, side, other in ((names[0], first, second), (names[1], second, first)):
        if any(seed is None and other[take] is not None for take, seed in side.items()):
            raise RequestError(
                f"{name} was recorded without seeds and the other with seeds; record both from servers that take "
                """seeds, or both without: --extra '{"seed": null}'""",
                "path",
            )
    if count := sum(seed != second[take] for take, seed in first.items()):
        raise RequestError(
            f"{count} recordings have different seeds; record both with the same --seed, and --texts in the same order",
            "path",
        )


def _not_comparable(figure: Figure, names: Names, first: Evaluation, second: Evaluation) -> str | None:
    """Returns why a figure of another model cannot be compared; None also if neither side has it."""
    if figure.key not in _MODELS:
        return None
    sides = first.figures, second.figures
    one, other = (side["transcriber"][_MODELS[figure.key]] for side in sides)
    if one is None or other is None:
        return None if one is other else f"only {names[one is None]} has it"
    if difference := _model_difference(one, other):
        return f"different models ({difference})"
    one, other = (side["reference"] or {} for side in sides)
    if figure.key == "similarity" and (difference := _model_difference(one, other)):
        return f"different reference clips ({difference})"
    return None


def _model_difference(one: Mapping[str, Any], other: Mapping[str, Any], ignored: Sequence[str] = ("name",)) -> str:
    """Describes how the models differ; empty if only `ignored` keys differ."""
    differing = _differing(one, other)
    if not differing.keys() - set(ignored):
        return ""
    return "; ".join(f"{name}: {pair[0]} and {pair[1]}" for name, pair in differing.items())


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (one.get(name), other.get(name)) for name in dict.fromkeys([*one, *other])}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _settings(side: Evaluation) -> dict[str, Any]:
    target = side.figures["target"]
    return {
        "machine": side.result["machine"],
        "commit": side.result["commit"],
        "target": target["preset"],
        "models": ", ".join(target["served"]),
        **target["fields"],
        "concurrency": side.figures["concurrency"],
        "recognizer version": side.figures["transcriber"]["recognizer"].get("version"),
    }


# --- differences ---


def _difference(
    figure: Figure,
    first: Sequence[Recording],
    second: Sequence[Recording],
    first_scores: Sequence[Score],
    second_scores: Sequence[Score],
) -> Difference | None:
    """Compares the takes to which the figure applies on both sides."""
    one, other = by_take(figure, first, first_scores), by_take(figure, second, second_scores)
    takes = [take for take in one if take in other]
    if not takes:
        return None
    sides = [by_text({take: side[take] for take in takes}) for side in (one, other)]
    (count, of), (other_count, other_of) = map(add, sides)
    if not of or not other_of:
        return None
    texts = len(sides[0])
    step = figure.step(len(takes), min(of, other_of))
    low, high = widened(*difference_interval(*sides), texts, step, lowest=-1.0)
    chance = sign_test(*sides) if figure.is_flag else 0.0
    return Difference(figure, count / of, other_count / other_of, low, high, texts, chance)


def conclusion(comparison: Comparison) -> list[str]:
    """Returns one sentence per line."""
    lines = []
    if comparison.equal:
        many = "all" if comparison.equal == comparison.recordings else f"{comparison.equal} of"
        lines.append(f"{many} {comparison.recordings} recordings are equal, within one step of 16 bits")
    clear = [found for found in comparison.differences if found.verdict not in ("none", "too few")]
    for found in clear:
        worse = {"first worse": f"{comparison.names[0]} is worse", "second worse": f"{comparison.names[1]} is worse"}
        spread = shown_range(found.figure, found.low, found.high, signed=True)
        by = shown(found.figure, found.by, signed=True)
        lines.append(f"{worse.get(found.verdict, 'they differ')} in {found.figure.title}: {by} ({spread})")
    few = [found.figure.title for found in comparison.differences if found.verdict == "too few"]
    if len(few) == len(comparison.differences):
        lines.append(f"fewer than {MIN_TEXTS} texts: too few to find differences")
    elif few:
        lines.append(f"fewer than {MIN_TEXTS} texts for {' and '.join(few)}: too few to find differences")
    if not clear and len(few) < len(comparison.differences):
        lines.append(f"no difference beyond noise: every {'other ' if few else ''}95 % interval holds 0")
    return [*lines, *comparison.notes]
