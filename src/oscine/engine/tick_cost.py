"""The cost of a tick, learned while the engine runs: a constant, a part per row and a part per prefilled prompt row."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from oscine.types import TICK_BOUNDS_S, TickHistogram

_DECAY = 0.97  # per tick: about the last thirty count
_SMOOTHING = 0.1
_MIN_STALL_S = 0.005
_MIN_VARIANCE = 0.25  # of the batch size; below it, a slope means nothing


@dataclass(frozen=True, slots=True)
class TickCost:
    """All zero before the first tick: optimistic, and corrected within a few ticks."""

    fixed_s: float = 0.0
    row_s: float = 0.0
    prefill_row_s: float = 0.0
    rows_seen: int = 0  # the largest batch measured without a prefill

    def tick_s(self, rows: int, prefill_rows: int = 0) -> float:
        return self.fixed_s + self.row_s * rows + self.prefill_row_s * prefill_rows

    def rows_within(self, limit_s: float, max_rows: int) -> int:
        """The largest batch whose tick stays within `limit_s`; at least one row."""
        if self.tick_s(max_rows) <= limit_s:
            return max_rows
        return max(1, min(max_rows, int((limit_s - self.fixed_s) / self.row_s))) if self.row_s > 0 else 1


class TickCostModel:
    """Least squares over (rows, seconds) of recent ticks. Ticks with a prefill only update the prefill's cost."""

    def __init__(self) -> None:
        self._weight = self._rows = self._rows2 = self._time = self._rows_time = 0.0
        self.cost = TickCost()
        self.smooth_tick_s = 0.0
        self._counts = [0] * (len(TICK_BOUNDS_S) + 1)
        self._sum_s = 0.0

    @property
    def histogram(self) -> TickHistogram:
        return TickHistogram(tuple(self._counts), self._sum_s)

    def add(self, rows: int, prefill_rows: int, tick_s: float, *, timed: bool = True) -> None:
        """A tick. Not `timed`: it took `tick_s` at most, and is taken to be no slower than expected."""
        if not timed:
            tick_s = min(tick_s, self.cost.tick_s(rows, prefill_rows))
        self._counts[bisect_left(TICK_BOUNDS_S, tick_s)] += 1
        self._sum_s += tick_s
        self.smooth_tick_s += (tick_s - self.smooth_tick_s) * (_SMOOTHING if self.smooth_tick_s else 1.0)
        if prefill_rows:
            self._fit_prefill(rows, prefill_rows, tick_s)
        else:
            self._fit_line(rows, tick_s)
            self.cost = replace(self.cost, rows_seen=max(self.cost.rows_seen, rows))

    def _fit_line(self, rows: int, tick_s: float) -> None:
        # One stall (another process, a page fault) must not stop admission for seconds.
        if self._weight > 1:
            tick_s = min(tick_s, max(4 * self.cost.tick_s(rows), _MIN_STALL_S))
        self._weight = self._weight * _DECAY + 1
        self._rows = self._rows * _DECAY + rows
        self._rows2 = self._rows2 * _DECAY + rows * rows
        self._time = self._time * _DECAY + tick_s
        self._rows_time = self._rows_time * _DECAY + rows * tick_s
        mean_rows, mean_s = self._rows / self._weight, self._time / self._weight
        variance = self._rows2 / self._weight - mean_rows**2
        row_s = self.cost.row_s
        if variance > _MIN_VARIANCE:
            row_s = max(0.0, (self._rows_time / self._weight - mean_rows * mean_s) / variance)
        row_s = min(row_s, mean_s / mean_rows)
        self.cost = replace(self.cost, fixed_s=mean_s - row_s * mean_rows, row_s=row_s)

    def _fit_prefill(self, rows: int, prefill_rows: int, tick_s: float) -> None:
        if not self._weight:
            return  # the cost of the frame itself is not known yet
        known_s = self.cost.prefill_row_s
        row_s = max(0.0, tick_s - self.cost.tick_s(rows)) / prefill_rows
        self.cost = replace(self.cost, prefill_row_s=known_s + (row_s - known_s) * (_SMOOTHING if known_s else 1.0))
