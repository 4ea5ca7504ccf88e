"""Finds the highest request rate that a server sustains."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from oscine.errors import RequestError
from oscine_bench.metrics import MIN_FOR_P95
from oscine_bench.summary import Row


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
    """Half again as long as MIN_FOR_P95 requests take on average, because fewer may arrive by chance."""
    return 1.5 * MIN_FOR_P95 / rate_per_s


async def search_rate(
    holds: Callable[[float], Awaitable[bool]],
    *,
    first: float = 1.0,
    max_rate: float = 1000.0,
    min_rate: float = 0.05,
    resolution: float = 0.05,
) -> float | None:
    """The highest rate that holds, at most `resolution` below the lowest that failed: doubles (or halves while none
    holds), then tries the geometric mean of both. None if not even `min_rate` holds."""
    low: float | None = None
    high: float | None = None
    rate = min(first, max_rate)
    while low is None or high is None:
        if await holds(rate):
            low = rate
            if rate >= max_rate:
                return low
            rate = min(2 * rate, max_rate)
        else:
            high = rate
            rate /= 2
            if rate < min_rate and low is None:
                return None
    while high / low > 1 + resolution:
        middle = math.sqrt(low * high)
        if await holds(middle):
            low = middle
        else:
            high = middle
    return low
