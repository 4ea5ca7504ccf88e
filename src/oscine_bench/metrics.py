"""Computes figures from one request's timeline, with pure functions. docs/metrics.md defines every term."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import amplitude

# Onset detector: audible sound starts with the first of two successive loud windows.
WINDOW_S = 0.020
HOP_S = 0.010
ONSET_DBFS = -45.0
_BLOCK_WINDOWS = 32

SPLIT_S = 0.001  # reads closer together are one chunk that the network or the kernel has split
NOT_STREAMED_S = 0.005  # all audio within this time: the response was not streamed, and playback does not apply
AUDIBLE_DEFICIT_S = 0.1
_ROUNDING_S = 1e-6  # sums of chunk lengths are inexact; a microsecond is no gap

PERCENTILES = (50, 90, 95, 99)
MIN_FOR_P95 = 20  # by nearest rank, the p95 of fewer values is their maximum


@dataclass(frozen=True, slots=True)
class Timeline:
    """Arrivals of audio, in seconds since the request was sent."""

    arrived_s: tuple[float, ...]
    audio_s: tuple[float, ...]  # seconds of audio received so far

    @classmethod
    def of(cls, arrived_s: Sequence[float], audio_s: Sequence[float]) -> Timeline:
        """Makes a timeline without arrivals that carried no playable audio: a header, half a sample, part of an
        event."""
        times: list[float] = []
        totals: list[float] = []
        for at_s, total_s in zip(arrived_s, audio_s, strict=True):
            if total_s > (totals[-1] if totals else 0.0):
                times.append(at_s)
                totals.append(total_s)
        return cls(tuple(times), tuple(totals))

    @property
    def first_audio_s(self) -> float:
        return self.arrived_s[0]

    @property
    def came_at_once(self) -> bool:
        return self.arrived_s[-1] - self.arrived_s[0] <= NOT_STREAMED_S

    def received_by(self, at_s: float) -> float:
        """Returns the seconds of audio received by that time."""
        count = int(np.searchsorted(self.arrived_s, at_s, side="right"))
        return self.audio_s[count - 1] if count else 0.0


@dataclass(frozen=True, slots=True)
class Playback:
    """A player that starts with the first audio, plays in real time, and waits when it runs dry."""

    deficit_s: float  # total waiting: the buffer that would have avoided it
    longest_stall_s: float
    stalls: int


def _waits(timeline: Timeline) -> npt.NDArray[np.float64]:
    """Returns the seconds that the player waits for each arrival."""
    before_s = np.concatenate([[0.0], timeline.audio_s[:-1]])
    late_s = np.subtract(timeline.arrived_s, timeline.first_audio_s + before_s)  # of a player that never waits
    waits = np.diff(np.maximum.accumulate(late_s), prepend=0.0)
    return np.where(waits > _ROUNDING_S, waits, 0.0)


def play(timeline: Timeline) -> Playback:
    waits = _waits(timeline)
    return Playback(float(waits.sum()), float(waits.max()), int(np.count_nonzero(waits)))


def played_at(timeline: Timeline, position_s: float) -> float:
    """Returns when the player reaches that position of the audio."""
    if position_s >= timeline.audio_s[-1]:
        raise ValueError(f"{position_s} s is not within {timeline.audio_s[-1]} s of audio")
    chunk = int(np.searchsorted(timeline.audio_s, position_s, side="right"))
    return timeline.first_audio_s + position_s + float(_waits(timeline)[: chunk + 1].sum())


def gaps(timeline: Timeline) -> list[float]:
    """Returns the seconds between successive arrivals of audio."""
    times = timeline.arrived_s
    return [later - at for at, later in itertools.pairwise(times) if later - at >= SPLIT_S]


def onset(pcm: npt.NDArray[np.int16], rate_hz: int) -> float | None:
    """Returns the start of audible sound in seconds; None if there is none."""
    window, hop = max(1, round(WINDOW_S * rate_hz)), max(1, round(HOP_S * rate_hz))
    threshold = amplitude(ONSET_DBFS) ** 2
    count = max(0, (len(pcm) - window) // hop + 1)
    # Blocks share a window. Speech mostly starts in the first block, and other streams wait during this computation.
    for first in range(0, count - 1, _BLOCK_WINDOWS):
        last = min(first + _BLOCK_WINDOWS, count - 1)
        block = pcm[first * hop : last * hop + window].astype(np.float64)
        loud = np.lib.stride_tricks.sliding_window_view(block, window)[::hop].var(axis=1) >= threshold
        starts = np.flatnonzero(loud[:-1] & loud[1:])
        if len(starts):
            return int(first + starts[0]) * hop / rate_hz
    return None


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the percentile by nearest rank, which is always a measured value."""
    # The product is rounded first: 0.95 * 20 may be a little above 19.
    return sorted(values)[max(0, math.ceil(round(percent / 100 * len(values), 9)) - 1)]


def spread(values: Sequence[float], *, scale: float = 1.0) -> dict[str, float] | None:
    """Returns percentiles, mean and extremes; None if nothing was measured."""
    if not values:
        return None
    ordered = sorted(value * scale for value in values)
    figures = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {**figures, "mean": math.fsum(ordered) / len(ordered), "least": ordered[0], "most": ordered[-1]}
