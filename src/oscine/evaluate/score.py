"""Recordings become marks, and marks become figures. Pure functions; every term is defined in docs/eval.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from oscine.evaluate.bootstrap import Terms, interval, widened
from oscine.evaluate.recording import Recording
from oscine.evaluate.word_error_rate import Alignment, Unit, align, normalise, unit_of

# So many words or characters at an end may be the recogniser's fault; more of them are a flag.
SLACK: dict[Unit, int] = {"word": 1, "character": 2}
# Longer than speech of that length has any reason to be.
RUNAWAY_FACTOR = 3.0
RUNAWAY_S = 2.0
SLOWEST_S: dict[Unit, float] = {"word": 0.15, "character": 0.5}  # a letter, a character: where a whole set runs away
RUNAWAY_ENDS = ("runaway", "length")  # it did not end by itself

SILENT_SHARE = 0.5
CLIPPED_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class Mark:
    """What is to be said about one recording."""

    unit: Unit
    alignment: Alignment | None  # None: there was no sound, or nobody listened
    flags: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def error_share(self) -> float:
        """For the order of a page; a corpus's rate is no mean of these."""
        return self.alignment.errors / max(self.alignment.wanted, 1) if self.alignment else 0.0

    def as_dict(self) -> dict[str, Any]:
        counts: dict[str, Any] = {"unit": self.unit, "flags": list(self.flags), "warnings": list(self.warnings)}
        if self.alignment is not None:
            counts |= {name: getattr(self.alignment, name) for name in ("wanted", "missing", "added", "exchanged")}
        return counts


def mark_all(recordings: Sequence[Recording]) -> list[Mark]:
    """Together: how long one may last is told by the others."""
    pace_s = _paces(recordings)
    return [_mark(recording, pace_s) for recording in recordings]


def _mark(recording: Recording, pace_s: dict[Unit, float]) -> Mark:
    unit = unit_of(recording.text)
    if recording.file is None:
        return Mark(unit, None, (), ())
    alignment = None
    flags: list[str] = []
    if recording.heard is not None:
        wanted = normalise(recording.text, recording.language, unit)
        alignment = align(wanted, normalise(recording.heard, recording.language, unit))
        flags += _flags(alignment, unit)
    if _is_runaway(recording, unit, pace_s):
        flags.append("runaway")
    warnings = []
    if recording.silence_share > SILENT_SHARE:
        warnings.append(f"silent for {recording.silence_share:.0%}")
    if recording.clipped_share > CLIPPED_SHARE:
        warnings.append(f"clipped: {recording.clipped_share:.1%} of samples at full scale")
    return Mark(unit, alignment, tuple(flags), tuple(warnings))


def _flags(alignment: Alignment, unit: Unit) -> list[str]:
    flags = []
    silent = alignment.wanted > 0 and alignment.missing == alignment.wanted
    if silent or max(alignment.missing_ends) > SLACK[unit]:
        flags.append("truncated")
    # A doubled character is often the recogniser's doing, a doubled word seldom is.
    stutter = alignment.repeated >= SLACK[unit]
    if stutter or max(alignment.added_ends) > SLACK[unit]:
        flags.append("repeated")
    return flags


def _letters(recording: Recording, unit: Unit) -> int:
    return len("".join(normalise(recording.text, recording.language, unit)))


def _paces(recordings: Sequence[Recording]) -> dict[Unit, float]:
    """Seconds for a letter, by kind of script: the median of the set, or a very slow speaker's if that is less."""
    seen: dict[Unit, list[float]] = {"word": [], "character": []}
    for recording in recordings:
        unit = unit_of(recording.text)
        if recording.file is not None and (letters := _letters(recording, unit)):
            seen[unit].append(recording.audio_s / letters)
    return {unit: min(median(paces), SLOWEST_S[unit]) for unit, paces in seen.items() if paces}


def _is_runaway(recording: Recording, unit: Unit, pace_s: dict[Unit, float]) -> bool:
    if recording.finish_reason in RUNAWAY_ENDS:
        return True
    expected_s = pace_s.get(unit, 0.0) * _letters(recording, unit)
    return recording.audio_s > RUNAWAY_FACTOR * expected_s and recording.audio_s > expected_s + RUNAWAY_S


@dataclass(frozen=True, slots=True)
class Figure:
    """A quotient of two sums over recordings, so that all of them are totalled and compared in one way."""

    key: str
    title: str
    terms: Callable[[Recording, Mark], Terms | None]  # None: does not apply to this recording
    what: str = "recordings"  # that the second term counts
    percent: bool = True
    better: int = -1  # 1: more is better; 0: neither is

    @property
    def is_flag(self) -> bool:
        """Each recording has it or has it not."""
        return self.percent and self.what == "recordings"

    def step(self, recordings: int, of: float) -> float:
        """What one event in every recording adds to it; 0: it counts no events."""
        return recordings / of if self.percent else 0.0


def _errors(unit: Unit) -> Callable[[Recording, Mark], Terms | None]:
    def terms(recording: Recording, mark: Mark) -> Terms | None:
        if mark.alignment is None or mark.unit != unit:
            return None
        return mark.alignment.errors, mark.alignment.wanted

    return terms


def _flag(name: str, *, by_ear: bool = True) -> Callable[[Recording, Mark], Terms | None]:
    def terms(recording: Recording, mark: Mark) -> Terms | None:
        judged = mark.alignment is not None if by_ear else recording.file is not None
        return (float(name in mark.flags), 1.0) if judged else None

    return terms


def _value(value: float | None) -> Terms | None:
    return None if value is None else (value, 1.0)


FIGURES = (
    Figure("wer", "WER", _errors("word"), "words"),
    Figure("cer", "CER", _errors("character"), "characters"),
    Figure("truncated", "truncated", _flag("truncated")),
    Figure("repeated", "repeated", _flag("repeated")),
    Figure("runaway", "runaway", _flag("runaway", by_ear=False)),
    Figure("failed", "failed", lambda recording, mark: (float(recording.file is None), 1.0)),
    Figure(
        "dnsmos",
        "DNSMOS, overall",
        lambda recording, mark: _value(recording.dnsmos["ovrl"] if recording.dnsmos else None),
        percent=False,
        better=1,
    ),
    Figure(
        "similarity",
        "speaker similarity",
        lambda recording, mark: _value(recording.similarity),
        percent=False,
        better=1,
    ),
    Figure(
        "audio_s",
        "seconds of sound",
        lambda recording, mark: _value(recording.audio_s if recording.file else None),
        percent=False,
        better=0,
    ),
)


def shown(figure: Figure, value: float, *, signed: bool = False) -> str:
    """A share as a percentage; a difference of shares in percentage points."""
    sign = "+" if signed else ""
    if not figure.percent:
        return f"{value:{sign}.2f}"
    return f"{100 * value:{sign}.1f} {'points' if signed else '%'}"


def shown_range(figure: Figure, low: float, high: float, *, signed: bool = False) -> str:
    first, last = shown(figure, low, signed=signed), shown(figure, high, signed=signed)
    return f"{first.split(' ')[0]} to {last}"


def by_text(
    figure: Figure, recordings: Sequence[Recording], marks: Sequence[Mark]
) -> dict[tuple[str, int], Terms | None]:
    """Terms by text and take."""
    return {
        (recording.text, recording.take): figure.terms(recording, mark)
        for recording, mark in zip(recordings, marks, strict=True)
    }


def totals(recordings: Sequence[Recording], marks: Sequence[Mark]) -> dict[str, dict[str, float] | None]:
    """Each figure with its 95 % interval; None where it does not apply or was not measured."""
    return {figure.key: _total(figure, recordings, marks) for figure in FIGURES}


def _total(figure: Figure, recordings: Sequence[Recording], marks: Sequence[Mark]) -> dict[str, float] | None:
    texts: dict[str, list[Terms]] = {}
    for (text, _), terms in by_text(figure, recordings, marks).items():
        if terms is not None:
            texts.setdefault(text, []).append(terms)
    sums = [(sum(one[0] for one in takes), sum(one[1] for one in takes)) for takes in texts.values()]
    count, of = sum(one[0] for one in sums), sum(one[1] for one in sums)
    if not of:
        return None
    step = figure.step(sum(map(len, texts.values())), of)
    low, high = widened(*interval(sums), len(sums), step)
    return {"value": count / of, "low": low, "high": high, "count": count, "of": of}
