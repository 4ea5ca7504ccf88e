"""Turns exchanges into outcomes, and the outcomes of one load into one row of figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oscine.audio.pcm import FRAME_RATE_HZ
from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.metrics import AUDIBLE_DEFICIT_S, Playback, Timeline, gaps, onset, play, played_at, spread
from oscine_bench.received_audio import InvalidAudioError, decode_audio
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest

# Servers that read max_new_tokens differently may make one frame more than requested, not two.
_EXTRA_FRAMES = 1.5

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """One analyzed request. Durations are seconds since it was sent; `sent_s` and `due_s` are clock readings."""

    request: PlannedRequest
    due_s: float
    sent_s: float
    e2e_s: float
    failure: RequestFailure | None = None
    timeline: Timeline | None = None  # None after a failure
    first_byte_s: float = math.nan
    silence_s: float | None = None  # before the onset; None: nothing audible
    audible_s: float | None = None
    playback: Playback | None = None  # None: not applicable

    @property
    def measured(self) -> bool:
        return self.request.phase == "measured"

    @property
    def end_s(self) -> float:
        return self.sent_s + self.e2e_s

    @property
    def audio_s(self) -> float:
        return self.timeline.audio_s[-1] if self.timeline else 0.0

    @property
    def x_real_time(self) -> float:
        return self.audio_s / self.e2e_s


def analyze(exchange: Exchange, target: Target) -> RequestOutcome:
    sent_s = exchange.sent_s
    facts = (exchange.request, exchange.due_s, sent_s, exchange.end_s - sent_s)
    if exchange.failure is not None:
        return RequestOutcome(*facts, exchange.failure)
    max_s = math.inf if target.frames is None else (target.frames + _EXTRA_FRAMES) / FRAME_RATE_HZ
    try:
        audio = decode_audio(exchange, target)
        if audio.duration_s > max_s:
            raise InvalidAudioError("too_long", f"{audio.duration_s:.2f} s of audio, expected at most {max_s:.2f} s")
    except InvalidAudioError as error:
        return RequestOutcome(*facts, error.failure)
    timeline = Timeline.of([at_s - sent_s for at_s in exchange.arrived_s], audio.playable_s)
    silence_s = onset(audio.pcm, audio.rate_hz)
    # A server that states the length has the whole response before it sends the first byte.
    streamed = not timeline.came_at_once and "content-length" not in exchange.headers
    return RequestOutcome(
        *facts,
        timeline=timeline,
        first_byte_s=exchange.arrived_s[0] - sent_s,
        silence_s=silence_s,
        audible_s=None if silence_s is None else played_at(timeline, silence_s),
        playback=play(timeline) if streamed else None,
    )


@dataclass(frozen=True, slots=True)
class MeasurementWindow:
    """A time span on the client's clock."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s

    def audio_s(self, outcomes: Iterable[RequestOutcome]) -> float:
        """Returns the audio of any request that arrived within the window."""
        return sum(
            outcome.timeline.received_by(self.end_s - outcome.sent_s)
            - outcome.timeline.received_by(self.begin_s - outcome.sent_s)
            for outcome in outcomes
            if outcome.timeline is not None
        )

    def completed(self, outcomes: Iterable[RequestOutcome]) -> list[RequestOutcome]:
        return [one for one in outcomes if one.failure is None and self.begin_s < one.end_s <= self.end_s]


def peak_overlap(intervals: Sequence[tuple[float, float]]) -> int:
    """Returns the largest number of intervals (begin, end) that overlap."""
    changes = [(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals]
    peak = now = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak


def summarize(outcomes: Sequence[RequestOutcome], window: MeasurementWindow) -> Row:
    """Makes one row. `outcomes` include the warm-up; figures of requests are over the measured ones only."""
    measured = [outcome for outcome in outcomes if outcome.measured]
    good = [outcome for outcome in measured if outcome.timeline is not None]
    timelines = [outcome.timeline for outcome in good if outcome.timeline is not None]
    completed = window.completed(outcomes)
    return {
        "window_s": window.length_s,
        "requests": len(measured),
        "succeeded": len(good),
        "failures": _failures(measured),
        "inaudible": sum(outcome.audible_s is None for outcome in good),
        "requests_per_s": len(completed) / window.length_s,
        "characters_per_s": sum(len(one.request.text) for one in completed) / window.length_s,
        "x_real_time": window.audio_s(outcomes) / window.length_s,
        "x_real_time_per_request": spread([outcome.x_real_time for outcome in good]),
        "first_byte_ms": spread([outcome.first_byte_s for outcome in good], scale=1e3),
        "first_audio_ms": spread([timeline.first_audio_s for timeline in timelines], scale=1e3),
        "audible_ms": spread([one.audible_s for one in good if one.audible_s is not None], scale=1e3),
        "leading_silence_ms": spread([one.silence_s for one in good if one.silence_s is not None], scale=1e3),
        "e2e_ms": spread([outcome.e2e_s for outcome in good], scale=1e3),
        "gap_ms": spread([gap_s for timeline in timelines for gap_s in gaps(timeline)], scale=1e3),
        "audio_s": spread([outcome.audio_s for outcome in good]),
        "underruns": _underruns([one.playback for one in good if one.playback is not None]),
        "peak_in_flight": peak_overlap([(outcome.sent_s, outcome.end_s) for outcome in outcomes]),
        "send_lag_ms": spread([outcome.sent_s - outcome.due_s for outcome in measured], scale=1e3),
        "timelines": _examples(good),
    }


def _failures(measured: Sequence[RequestOutcome]) -> dict[str, Row]:
    """Returns count and first message of each kind."""
    failures = [outcome.failure for outcome in measured if outcome.failure is not None]
    first = {failure.kind: failure.message for failure in reversed(failures)}
    counts = Counter(failure.kind for failure in failures)
    return {kind: {"count": count, "first": first[kind]} for kind, count in counts.most_common()}


def _underruns(played: Sequence[Playback]) -> Row:
    deficits_s = [playback.deficit_s for playback in played]
    over = sum(deficit_s > AUDIBLE_DEFICIT_S for deficit_s in deficits_s)
    return {
        "applicable": len(played),
        "requests": sum(deficit_s > 0 for deficit_s in deficits_s),
        "over_100_ms": over,
        "share_over_100_ms": over / len(played) if played else None,
        "worst_deficit_ms": max(deficits_s) * 1e3 if played else None,
        "longest_stall_ms": max(playback.longest_stall_s for playback in played) * 1e3 if played else None,
    }


def _examples(good: Sequence[RequestOutcome]) -> Row:
    """Returns the request with the median end-to-end time, and the one with the worst playback."""
    if not good:
        return {}
    by_time = sorted(good, key=lambda outcome: outcome.e2e_s)
    worst = max(good, key=lambda outcome: (outcome.playback.deficit_s if outcome.playback else 0.0, outcome.e2e_s))
    return {"typical": _example(by_time[(len(by_time) - 1) // 2]), "worst": _example(worst)}


def _example(outcome: RequestOutcome) -> Row:
    assert outcome.timeline is not None
    return {
        "index": outcome.request.index,
        "e2e_ms": outcome.e2e_s * 1e3,
        "audible_ms": None if outcome.audible_s is None else outcome.audible_s * 1e3,
        "arrived_ms": [at_s * 1e3 for at_s in outcome.timeline.arrived_s],
        "heard_ms": [total_s * 1e3 for total_s in outcome.timeline.audio_s],  # a key of the file format
    }
