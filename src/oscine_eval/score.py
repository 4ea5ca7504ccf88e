"""Scores single recordings and computes figures over a set, with pure functions; docs/eval.md defines every term."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from oscine_eval.bootstrap import Ratio, add, interval, widened
from oscine_eval.recording import Recording
from oscine_eval.word_error_rate import Alignment, Unit, align, normalize, references, unit_of

# So many errors at an end may be the recognizer's; more are flagged.
SLACK: dict[Unit, int] = {"word": 1, "character": 2}
RUNAWAY_FACTOR = 3.0
RUNAWAY_S = 2.0
MAX_LETTER_S: dict[Unit, float] = {"word": 0.15, "character": 0.5}  # limits the median of a set that runs away
LETTERS_PER_DIGIT = 5  # "seven": digits are spoken as words
RUNAWAY_ENDS = ("runaway", "length")

SILENT_SHARE = 0.5
CLIPPED_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Score:
    unit: Unit
    alignment: Alignment | None  # None: no audio, or not transcribed yet
    flags: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def error_rate(self) -> float:
        """The rate that orders the page. The rate of a set is not the mean of these."""
        return self.alignment.errors / max(self.alignment.reference_length, 1) if self.alignment else 0.0

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"unit": self.unit, "flags": list(self.flags), "warnings": list(self.warnings)}
        if self.alignment is not None:
            counts = ("reference_length", "deletions", "insertions", "substitutions")
            found |= {name: getattr(self.alignment, name) for name in counts}
        return found


def score_all(recordings: Sequence[Recording]) -> list[Score]:
    """Scores all recordings together, because the expected length of one follows from the others."""
    letter_s = _seconds_per_letter(recordings)
    return [_score(recording, letter_s) for recording in recordings]


def _score(recording: Recording, letter_s: dict[Unit, float]) -> Score:
    unit = unit_of(recording.text)
    if recording.file is None:
        return Score(unit, None)
    alignment = None
    flags: list[str] = []
    if recording.transcript is not None:
        said = normalize(recording.transcript, recording.language, unit)
        alignment = min(
            (align(normalize(text, recording.language, unit), said) for text in references(recording.text)),
            key=lambda one: one.errors / max(one.reference_length, 1),
        )
        flags += _flags(alignment, unit)
    if _is_runaway(recording, unit, letter_s):
        flags.append("runaway")
    warnings = []
    if recording.silence_share > SILENT_SHARE:
        warnings.append(f"silent for {recording.silence_share:.0%}")
    if recording.clipped_share > CLIPPED_SHARE:
        warnings.append(f"clipped: {recording.clipped_share:.1%} of samples at full scale")
    return Score(unit, alignment, tuple(flags), tuple(warnings))


def _flags(alignment: Alignment, unit: Unit) -> list[str]:
    flags = []
    silent = 0 < alignment.reference_length == alignment.deletions
    if silent or max(alignment.deleted_ends) > SLACK[unit]:
        flags.append("truncated")
    # Recognizers often double a character, and rarely a word.
    if alignment.repetitions >= SLACK[unit] or max(alignment.inserted_ends) > SLACK[unit]:
        flags.append("repeated")
    return flags


def _letters(text: str) -> int:
    return sum(LETTERS_PER_DIGIT if character.isdigit() else character.isalnum() for character in text)


def _seconds_per_letter(recordings: Sequence[Recording]) -> dict[Unit, float]:
    seen: dict[Unit, list[float]] = {"word": [], "character": []}
    for recording in recordings:
        if recording.file is not None and (letters := _letters(recording.text)):
            seen[unit_of(recording.text)].append(recording.audio_s / letters)
    return {unit: min(median(seconds), MAX_LETTER_S[unit]) for unit, seconds in seen.items() if seconds}


def _is_runaway(recording: Recording, unit: Unit, letter_s: dict[Unit, float]) -> bool:
    if recording.finish_reason in RUNAWAY_ENDS:
        return True
    expected_s = letter_s.get(unit, 0.0) * _letters(recording.text)
    return recording.audio_s > RUNAWAY_FACTOR * expected_s and recording.audio_s > expected_s + RUNAWAY_S


@dataclass(frozen=True, slots=True)
class Figure:
    """A ratio of two sums over recordings, so that all figures are totaled and compared in one way."""

    key: str
    title: str
    ratio: Callable[[Recording, Score], Ratio | None]  # None: does not apply to this recording
    counted: str = "recordings"  # in the denominator
    percent: bool = True
    better: int = -1  # 1: more is better; 0: neither is

    @property
    def is_flag(self) -> bool:
        """Whether each recording either has it or not."""
        return self.percent and self.counted == "recordings"

    def step(self, recordings: int, of: float) -> float:
        """What one event per recording adds to the figure; 0 if it counts no events."""
        return recordings / of if self.percent else 0.0


def _errors(unit: Unit) -> Callable[[Recording, Score], Ratio | None]:
    def ratio(recording: Recording, score: Score) -> Ratio | None:
        if score.alignment is None or score.unit != unit:
            return None
        return score.alignment.errors, score.alignment.reference_length

    return ratio


def _flag(name: str) -> Callable[[Recording, Score], Ratio | None]:
    return lambda recording, score: (float(name in score.flags), 1.0) if score.alignment is not None else None


def _mean(value: Callable[[Recording], float | None]) -> Callable[[Recording, Score], Ratio | None]:
    return lambda recording, score: None if (found := value(recording)) is None else (found, 1.0)


FIGURES = (
    Figure("wer", "WER", _errors("word"), "words"),
    Figure("cer", "CER", _errors("character"), "characters"),
    Figure("truncated", "truncated", _flag("truncated")),
    Figure("repeated", "repeated", _flag("repeated")),
    Figure("runaway", "runaway", lambda one, score: (float("runaway" in score.flags), 1.0) if one.file else None),
    Figure("failed", "failed", _mean(lambda one: float(one.file is None))),
    Figure("dnsmos", "DNSMOS, overall", _mean(lambda one: one.dnsmos and one.dnsmos["ovrl"]), percent=False, better=1),
    Figure("similarity", "speaker similarity", _mean(lambda one: one.similarity), percent=False, better=1),
    Figure("audio_s", "seconds of sound", _mean(lambda one: one.audio_s if one.file else None), "recordings", False, 0),
)


def shown(figure: Figure, value: float, *, signed: bool = False) -> str:
    """Formats a share in percent, or a difference of shares in percentage points."""
    sign = "+" if signed else ""
    if not figure.percent:
        return f"{value:{sign}.2f}"
    return f"{100 * value:{sign}.1f} {'points' if signed else '%'}"


def shown_range(figure: Figure, low: float, high: float, *, signed: bool = False) -> str:
    first, last = shown(figure, low, signed=signed), shown(figure, high, signed=signed)
    return f"{first.split(' ')[0]} to {last}"


Take = tuple[str, int]  # a text, and which of its takes


def by_take(figure: Figure, recordings: Iterable[Recording], scores: Iterable[Score]) -> dict[Take, Ratio]:
    """Leaves out the takes to which the figure does not apply."""
    found = {
        (recording.text, recording.take): figure.ratio(recording, score)
        for recording, score in zip(recordings, scores, strict=True)
    }
    return {take: ratio for take, ratio in found.items() if ratio is not None}


def by_text(ratios: dict[Take, Ratio]) -> list[Ratio]:
    """Returns one ratio per text, over all its takes."""
    texts: dict[str, list[Ratio]] = {}
    for (text, _), ratio in ratios.items():
        texts.setdefault(text, []).append(ratio)
    return [add(takes) for takes in texts.values()]


def totals(recordings: Sequence[Recording], scores: Sequence[Score]) -> dict[str, dict[str, float] | None]:
    """Returns each figure with its 95 % interval; None if it does not apply or was not measured."""
    return {figure.key: _total(figure, by_take(figure, recordings, scores)) for figure in FIGURES}


def _total(figure: Figure, ratios: dict[Take, Ratio]) -> dict[str, float] | None:
    count, of = add(ratios.values()) if ratios else (0.0, 0.0)
    if not of:
        return None
    texts = by_text(ratios)
    low, high = widened(*interval(texts), len(texts), figure.step(len(ratios), of))
    return {"value": count / of, "low": low, "high": high, "count": count, "of": of}
