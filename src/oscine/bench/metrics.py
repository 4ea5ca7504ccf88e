"""Times become figures. Pure functions over one request's timeline; every term is defined in docs/metrics.md."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# The onset detector: sound begins with the first of two successive windows that are loud enough.
WINDOW_S = 0.020
HOP_S = 0.010
ONSET_DBFS = -45.0
ONSET_WINDOWS = 2

# Reads closer together are parts of one piece that the network or the kernel has split.
SPLIT_S = 0.001
# An answer whose sound came within this time was not streamed: there is nothing to say about its playback.
WHOLE_S = 0.005
AUDIBLE_DEFICIT_S = 0.1
_ROUNDING_S = 1e-6  # sums of chunk lengths are not exact; a microsecond is no gap

PERCENTILES = (50, 90, 95, 99)
MIN_FOR_P95 = 20  # by nearest rank, the 95th percentile of fewer is the longest
_FIRST_WINDOWS, _MAX_WINDOWS = 8, 256


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a listener had, and when. Seconds since the request was sent; only arrivals that brought sound."""

    arrived_s: tuple[float, ...]
    heard_s: tuple[float, ...]  # seconds of sound received so far

    @classmethod
    def of(cls, arrived_s: Sequence[float], heard_s: Sequence[float]) -> Timeline:
        """Leaves out what brought no sound that could be played: a header, half a sample, an event's beginning."""
        times: list[float] = []
        sums: list[float] = []
        for at_s, total_s in zip(arrived_s, heard_s, strict=True):
            if total_s > (sums[-1] if sums else 0.0):
                times.append(at_s)
                sums.append(total_s)
        return cls(tuple(times), tuple(sums))

    @property
    def first_audio_s(self) -> float:
        return self.arrived_s[0]

    @property
    def came_whole(self) -> bool:
        return self.arrived_s[-1] - self.arrived_s[0] <= WHOLE_S

    def received_by(self, at_s: float) -> float:
        """Seconds of sound that had come by then."""
        count = int(np.searchsorted(self.arrived_s, at_s, side="right"))
        return self.heard_s[count - 1] if count else 0.0


@dataclass(frozen=True, slots=True)
class Playback:
    """A player that starts with the first sound, plays in real time, and waits where it has nothing to play."""

    deficit_s: float  # all its waiting: what it should have buffered before it began
    longest_stall_s: float
    stalls: int


@dataclass(frozen=True, slots=True)
class _Played:
    at_s: float  # when this piece begins to sound
    from_s: float  # its place in the sound
    to_s: float
    waited_s: float


def _played(timeline: Timeline) -> Iterator[_Played]:
    free_at_s = timeline.first_audio_s  # when everything before will have been played
    before_s = 0.0
    for arrived_s, heard_s in zip(timeline.arrived_s, timeline.heard_s, strict=True):
        waited_s = arrived_s - free_at_s
        if waited_s <= _ROUNDING_S:
            waited_s = 0.0
        at_s = free_at_s + waited_s
        yield _Played(at_s, before_s, heard_s, waited_s)
        free_at_s = at_s + heard_s - before_s
        before_s = heard_s


def play(timeline: Timeline) -> Playback:
    waits = [piece.waited_s for piece in _played(timeline) if piece.waited_s > 0]
    return Playback(math.fsum(waits), max(waits, default=0.0), len(waits))


def played_at(timeline: Timeline, place_s: float) -> float:
    """When the listener hears the sound's moment `place_s`."""
    for piece in _played(timeline):
        if place_s < piece.to_s:
            return piece.at_s + place_s - piece.from_s
    raise ValueError(f"{place_s} s is not within {timeline.heard_s[-1]} s of sound")


def gaps(timeline: Timeline) -> list[float]:
    """Between successive arrivals of sound."""
    times = timeline.arrived_s
    return [later - at for at, later in itertools.pairwise(times) if later - at >= SPLIT_S]


def onset(pcm: npt.NDArray[np.int16], rate_hz: int) -> float | None:
    """Where the first audible sound begins, in seconds; None where there is none."""
    window, hop = max(1, round(WINDOW_S * rate_hz)), max(1, round(HOP_S * rate_hz))
    threshold = (32768 * 10 ** (ONSET_DBFS / 20)) ** 2
    count = max(0, (len(pcm) - window) // hop + 1)
    run, first, size = 0, 0, _FIRST_WINDOWS
    # In growing blocks: speech mostly begins within the first, and other streams wait while this is computed.
    while first < count:
        last = min(first + size, count) - 1
        block = pcm[first * hop : last * hop + window].astype(np.float64)
        windows = np.lib.stride_tricks.sliding_window_view(block, window)[::hop]
        for index, loud in enumerate((windows.var(axis=1) >= threshold).tolist(), start=first):
            run = run + 1 if loud else 0
            if run == ONSET_WINDOWS:
                return (index - ONSET_WINDOWS + 1) * hop / rate_hz
        first, size = last + 1, min(2 * size, _MAX_WINDOWS)
    return None


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank: a value that was really measured, never one between two."""
    if not values:
        raise ValueError("no values, no percentile")
    ordered = sorted(values)
    # The product is rounded first: 0.95 * 20 is a little above 19.
    return ordered[max(0, math.ceil(round(percent / 100 * len(ordered), 9)) - 1)]


def spread(values: Sequence[float], *, scale: float = 1.0) -> dict[str, float] | None:
    """What a result states of a quantity; None where it was never measured."""
    if not values:
        return None
    ordered = sorted(value * scale for value in values)
    figures = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {**figures, "mean": math.fsum(ordered) / len(ordered), "least": ordered[0], "most": ordered[-1]}
