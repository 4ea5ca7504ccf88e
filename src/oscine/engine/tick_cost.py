"""How long a tick takes, learnt while running: a fixed part, a part per row, and what a prefilled prompt row adds."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from oscine.types import TICK_BOUNDS_S, TickHistogram

_FORGET = 0.97  # per tick: about the last thirty count
_SMOOTH = 0.1
_SHORT_S = 0.005
_MIN_SPREAD = 0.25  # variance of the batch size below which a slope says nothing


@dataclass(frozen=True, slots=True)
class TickCost:
    """All zero before the first tick: optimistic, and corrected within a few."""

    fixed_s: float = 0.0
    row_s: float = 0.0
    prefill_row_s: float = 0.0
    rows_seen: int = 0  # the largest batch that was measured, without a prefill

    def tick_s(self, rows: int, prefill_rows: int = 0) -> float:
        return self.fixed_s + self.row_s * rows + self.prefill_row_s * prefill_rows

    def rows_within(self, limit_s: float, most: int) -> int:
        """The largest batch whose tick stays within `limit_s`; at least one row, or nothing would ever run."""
        if self.tick_s(most) <= limit_s:
            return most
        return max(1, min(most, int((limit_s - self.fixed_s) / self.row_s))) if self.row_s > 0 else 1


class TickCostModel:
    """A line through the last ticks (rows, seconds), old ones fading; ticks with a prefill teach its price instead."""

    def __init__(self) -> None:
        self._weight = self._rows = self._rows2 = self._time = self._rows_time = 0.0
        self.cost = TickCost()
        self.smooth_tick_s = 0.0
        self._counts = [0] * (len(TICK_BOUNDS_S) + 1)
        self._sum_s = 0.0

    @property
    def histogram(self) -> TickHistogram:
        return TickHistogram(tuple(self._counts), self._sum_s)

    def add(self, rows: int, prefill_rows: int, tick_s: float) -> None:
        self._counts[bisect_left(TICK_BOUNDS_S, tick_s)] += 1
        self._sum_s += tick_s
        self.smooth_tick_s += (tick_s - self.smooth_tick_s) * (_SMOOTH if self.smooth_tick_s else 1.0)
        if prefill_rows:
            self._learn_prefill(rows, prefill_rows, tick_s)
        else:
            self._learn_line(rows, tick_s)
            self.cost = replace(self.cost, rows_seen=max(self.cost.rows_seen, rows))

    def _learn_line(self, rows: int, tick_s: float) -> None:
        # One stall (another process, a page fault) must not shut the door for seconds.
        known_s = self.cost.tick_s(rows)
        if self._weight > 1:
            tick_s = min(tick_s, max(4 * known_s, _SHORT_S))
        self._weight = self._weight * _FORGET + 1
        self._rows = self._rows * _FORGET + rows
        self._rows2 = self._rows2 * _FORGET + rows * rows
        self._time = self._time * _FORGET + tick_s
        self._rows_time = self._rows_time * _FORGET + rows * tick_s
        mean_rows, mean_s = self._rows / self._weight, self._time / self._weight
        spread = self._rows2 / self._weight - mean_rows**2
        row_s = self.cost.row_s
        if spread > _MIN_SPREAD:
            row_s = max(0.0, (self._rows_time / self._weight - mean_rows * mean_s) / spread)
        row_s = min(row_s, mean_s / mean_rows)
        self.cost = replace(self.cost, fixed_s=mean_s - row_s * mean_rows, row_s=row_s)

    def _learn_prefill(self, rows: int, prefill_rows: int, tick_s: float) -> None:
        known = self.cost
        if not self._weight:
            return  # nothing to subtract yet
        price_s = max(0.0, tick_s - known.tick_s(rows)) / prefill_rows
        share = _SMOOTH if known.prefill_row_s else 1.0
        blended_s = known.prefill_row_s + (price_s - known.prefill_row_s) * share
        self.cost = replace(known, prefill_row_s=blended_s)
