"""Finds the highest request rate that a server sustains."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from oscine.errors import RequestError
from oscine_bench.load import RunLength
from oscine_bench.metrics import MIN_FOR_P95
from oscine_bench.summary import RequestOutcome, Row
from oscine_bench.workload import arrivals

_MIN_REQUESTS = 5  # that a shortened window measures, on average


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Conditions for a sustained rate. In addition, no request may fail."""

    figure: str = "first_audio_ms"  # or audible_ms, e2e_ms
    p95_ms: float = 50.0
    underrun_ms: float = 0.0  # largest deficit of any request; infinite: do not check

    def __post_init__(self) -> None:
        if not self.p95_ms > 0:
            raise RequestError(f"the p95 limit must be above 0 ms, got {self.p95_ms:g}", "p95_ms")
        if not self.underrun_ms >= 0:
            raise RequestError(f"the underrun limit must be 0 ms or more, got {self.underrun_ms:g}", "underrun_ms")

    def seconds_of(self, outcome: RequestOutcome) -> float:
        """Returns the limited time of one successful request."""
        assert outcome.timeline is not None and outcome.audible_s is not None
        times = {"first_audio_ms": outcome.timeline.first_audio_s, "audible_ms": outcome.audible_s}
        return times.get(self.figure, outcome.e2e_s)

    def violations(self, row: Row) -> list[str]:
        reasons = [f"{kind}: {failure['count']}" for kind, failure in row["failures"].items()]
        if not row["succeeded"]:
            return reasons or ["no request was due during the measurement"]
        if row["inaudible"]:
            reasons.append(f"inaudible: {row['inaudible']}")
        worst_ms = row["underruns"]["worst_deficit_ms"]
        if worst_ms is None and math.isfinite(self.underrun_ms):
            reasons.append("underruns: not applicable, the responses were not streamed")
        elif worst_ms is not None and worst_ms > self.underrun_ms:
            reasons.append(f"underruns: worst {worst_ms:.1f} ms")
        p95_ms = row[self.figure]["p95"] if row[self.figure] else math.inf
        if p95_ms > self.p95_ms:
            reasons.append(f"{self.figure.removesuffix('_ms').replace('_', ' ')} p95: {p95_ms:.1f} ms")
        return reasons


def seconds_for_p95(rate_per_s: float) -> float:
    """Returns half again as long as MIN_FOR_P95 requests take on average, because fewer may arrive by chance."""
    return 1.5 * MIN_FOR_P95 / rate_per_s


def length_at(rate_per_s: float, length: RunLength, left_s: float, *, may_shorten: bool) -> RunLength:
    """Returns how long to measure a rate; a low one takes longer. With `may_shorten`, a window that does not fit in the
    time left is cut to half of it, which leaves time for the last responses and another rate: a coarse result is better
    than none."""
    length = replace(length, duration_s=max(length.duration_s, seconds_for_p95(rate_per_s)))
    window_s = left_s / 2 - length.warmup_s
    fits = length.requests is not None or length.seconds_at(rate_per_s) <= left_s
    if fits or not may_shorten or rate_per_s * window_s < _MIN_REQUESTS:
        return length
    return replace(length, duration_s=window_s)


@dataclass(slots=True)
class RateSearch:
    """Finds the highest rate that holds, to within `resolution` of the lowest that failed: doubles (or halves while
    none holds), then tries the geometric mean of both."""

    first: float = 1.0
    max_rate: float = 1000.0
    min_rate: float = 0.05
    resolution: float = 0.05
    low: float | None = None  # the highest rate that held
    high: float | None = None  # the lowest that failed

    def next_rate(self) -> float | None:
        """Returns None when the search is complete."""
        if self.low is None and self.high is None:
            return min(self.first, self.max_rate)
        if self.low is None:
            assert self.high is not None
            return self.high / 2 if self.high / 2 >= self.min_rate else None
        if self.high is None:
            return min(2 * self.low, self.max_rate) if self.low < self.max_rate else None
        return math.sqrt(self.low * self.high) if self.high / self.low > 1 + self.resolution else None

    def add(self, rate: float, held: bool) -> None:
        if held:
            self.low = rate
        else:
            self.high = rate

    @property
    def max_steps(self) -> int:
        """Returns how many rates are still to be tried, at most."""
        if self.low is not None and self.high is not None:
            return self._halvings(self.high / self.low)
        bisections = self._halvings(2.0)
        up = max(0, math.ceil(math.log2(self.max_rate / (self.low or self.first))))
        down = max(0, math.floor(math.log2((self.high or self.first) / self.min_rate)))
        if self.low is not None:
            return up + bisections if up else 0
        if self.high is not None:
            return down + bisections if down else 0
        return 1 + max(up, down) + bisections

    def _halvings(self, ratio: float) -> int:
        """Returns how often a ratio's logarithm must be halved to reach that of the resolution."""
        return max(0, math.ceil(math.log2(math.log(ratio) / math.log1p(self.resolution))))


@dataclass(slots=True)
class Verdict:
    """Decides early whether a rate breaks the limits, whatever the outstanding responses will be."""

    limits: SearchLimits
    requests: int  # to be measured
    late: int = 0

    def is_final(self, outcome: RequestOutcome) -> bool:
        """Takes each outcome once. Returns whether the rate is certain to break the limits."""
        if not outcome.measured:
            return False
        if outcome.failure is not None or outcome.audible_s is None:
            return True
        if outcome.playback is not None and 1e3 * outcome.playback.deficit_s > self.limits.underrun_ms:
            return True
        self.late += 1e3 * self.limits.seconds_of(outcome) > self.limits.p95_ms
        return self.late > self.requests - math.ceil(0.95 * self.requests)


def measured_requests(rate_per_s: float, seed: int, length: RunLength) -> int:
    """Returns how many arrivals of an open loop are measured."""
    if length.requests is not None:
        return length.requests
    end_s = length.warmup_s + length.duration_s
    until_end = itertools.takewhile(lambda at_s: at_s < end_s, arrivals(rate_per_s, seed))
    return sum(at_s >= length.warmup_s for at_s in until_end)
