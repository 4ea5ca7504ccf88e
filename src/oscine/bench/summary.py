"""Exchanges become answers, and the answers to one load become one row of figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oscine.bench.exchange import Exchange, Failure
from oscine.bench.metrics import AUDIBLE_DEFICIT_S, Playback, Timeline, gaps, onset, play, played_at, spread
from oscine.bench.sound import CHEAP_FORMATS, BadSoundError, hear
from oscine.bench.targets import Target
from oscine.types import FRAME_RATE_HZ

# A server may make one frame more than was asked, by another reading of max_new_tokens; not two.
_FRAMES_OVER = 1.5


@dataclass(frozen=True, slots=True)
class Answer:
    """One request, judged. Durations are seconds since it was sent; `sent_s` and `due_s` are clock readings."""

    index: int
    measured: bool  # not of the warm-up
    due_s: float
    sent_s: float
    e2e_s: float
    failure: Failure | None = None
    timeline: Timeline | None = None  # where there is no failure
    first_byte_s: float = math.nan
    silence_s: float | None = None  # before the first audible sound; None: nothing audible
    audible_s: float | None = None
    playback: Playback | None = None  # None: not applicable

    @property
    def audio_s(self) -> float:
        return self.timeline.heard_s[-1] if self.timeline else 0.0

    @property
    def x_real_time(self) -> float:
        return self.audio_s / self.e2e_s


class Judge:
    """What an answer of this target must be to count."""

    def __init__(self, target: Target) -> None:
        self._format, self._sse = target.response_format, target.sse
        self._rate_hz = target.preset.pcm_rate_hz
        self._max_s = math.inf if target.frames is None else (target.frames + _FRAMES_OVER) / FRAME_RATE_HZ
        self.cheap = self._format in CHEAP_FORMATS and not self._sse

    def __call__(self, exchange: Exchange) -> Answer:
        facts = (
            exchange.utterance.index,
            exchange.utterance.phase == "measured",
            exchange.due_s,
            exchange.sent_s,
            exchange.end_s - exchange.sent_s,
        )
        if exchange.failure is not None:
            return Answer(*facts, exchange.failure)
        try:
            sound = hear(exchange, self._format, sse=self._sse, pcm_rate_hz=self._rate_hz)
            if sound.duration_s > self._max_s:
                raise BadSoundError(
                    "too_long", f"{sound.duration_s:.2f} s of sound, at most {self._max_s:.2f} s were asked"
                )
        except BadSoundError as error:
            return Answer(*facts, error.failure)
        timeline = Timeline.of([at_s - exchange.sent_s for at_s in exchange.arrived_s], sound.heard_s)
        silence_s = onset(sound.pcm, sound.rate_hz)
        # An answer that states its length was whole before its first byte was sent.
        whole = timeline.came_whole or "content-length" in exchange.headers
        return Answer(
            *facts,
            timeline=timeline,
            first_byte_s=exchange.arrived_s[0] - exchange.sent_s,
            silence_s=silence_s,
            audible_s=None if silence_s is None else played_at(timeline, silence_s),
            playback=None if whole else play(timeline),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is measured, on the client's clock."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def sound_s(self, answers: Iterable[Answer]) -> float:
        """Sound that came within it, whichever request it belonged to."""
        total_s = 0.0
        for answer in answers:
            if answer.timeline is not None:
                until_s = answer.timeline.received_by(self.end_s - answer.sent_s)
                total_s += until_s - answer.timeline.received_by(self.begin_s - answer.sent_s)
        return total_s

    def ended(self, answers: Iterable[Answer]) -> int:
        ends = (answer.sent_s + answer.e2e_s for answer in answers if answer.failure is None)
        return sum(self.begin_s < end_s <= self.end_s for end_s in ends)


def peak_in_flight(answers: Iterable[Answer]) -> int:
    changes = [(answer.sent_s, 1) for answer in answers] + [(a.sent_s + a.e2e_s, -1) for a in answers]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def summarise(answers: Sequence[Answer], window: Window) -> dict[str, Any]:
    """One row. `answers` are all of a run, warm-up too; figures of requests are of the measured ones alone."""
    measured = [answer for answer in answers if answer.measured]
    good = [answer for answer in measured if answer.timeline is not None]
    return {
        "window_s": window.length_s,
        "requests": len(measured),
        "succeeded": len(good),
        "failures": _failures(measured),
        "inaudible": sum(answer.audible_s is None for answer in good),
        "requests_per_s": window.ended(answers) / window.length_s,
        "x_real_time": window.sound_s(answers) / window.length_s,
        "x_real_time_per_request": spread([answer.x_real_time for answer in good]),
        "first_byte_ms": spread([answer.first_byte_s for answer in good], scale=1e3),
        "first_audio_ms": spread([a.timeline.first_audio_s for a in good if a.timeline], scale=1e3),
        "audible_ms": spread([a.audible_s for a in good if a.audible_s is not None], scale=1e3),
        "leading_silence_ms": spread([a.silence_s for a in good if a.silence_s is not None], scale=1e3),
        "e2e_ms": spread([answer.e2e_s for answer in good], scale=1e3),
        "gap_ms": spread([gap_s for a in good if a.timeline for gap_s in gaps(a.timeline)], scale=1e3),
        "audio_s": spread([answer.audio_s for answer in good]),
        "underruns": _underruns(good),
        "peak_in_flight": peak_in_flight(answers),
        "send_lag_ms": spread([answer.sent_s - answer.due_s for answer in measured], scale=1e3),
        "timelines": _examples(good),
    }


def _failures(measured: Sequence[Answer]) -> dict[str, dict[str, Any]]:
    """How many of each kind, and what the first of them said."""
    failures = [answer.failure for answer in measured if answer.failure is not None]
    counts = Counter(failure.kind for failure in failures)
    first = {failure.kind: failure.message for failure in reversed(failures)}
    return {kind: {"count": count, "first": first[kind]} for kind, count in counts.most_common()}


def _underruns(good: Sequence[Answer]) -> dict[str, Any]:
    played = [answer.playback for answer in good if answer.playback is not None]
    deficits_s = [playback.deficit_s for playback in played]
    return {
        "applicable": len(played),
        "requests": sum(deficit_s > 0 for deficit_s in deficits_s),
        "over_100_ms": sum(deficit_s > AUDIBLE_DEFICIT_S for deficit_s in deficits_s),
        "share_over_100_ms": sum(d > AUDIBLE_DEFICIT_S for d in deficits_s) / len(played) if played else None,
        "worst_deficit_ms": max(deficits_s) * 1e3 if played else None,
        "longest_stall_ms": max(playback.longest_stall_s for playback in played) * 1e3 if played else None,
    }


def _examples(good: Sequence[Answer]) -> dict[str, Any]:
    """The request of the median end-to-end time, and the one that its listener would complain about."""
    if not good:
        return {}
    by_time = sorted(good, key=lambda answer: answer.e2e_s)
    worst = max(good, key=lambda answer: (answer.playback.deficit_s if answer.playback else 0.0, answer.e2e_s))
    return {"typical": _example(by_time[(len(by_time) - 1) // 2]), "worst": _example(worst)}


def _example(answer: Answer) -> dict[str, Any]:
    assert answer.timeline is not None
    return {
        "index": answer.index,
        "e2e_ms": answer.e2e_s * 1e3,
        "audible_ms": None if answer.audible_s is None else answer.audible_s * 1e3,
        "arrived_ms": [at_s * 1e3 for at_s in answer.timeline.arrived_s],
        "heard_ms": [total_s * 1e3 for total_s in answer.timeline.heard_s],
    }
