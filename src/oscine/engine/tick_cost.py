"""Learns the cost of a tick while the engine runs: a constant, a part per row, and a part per prefilled prompt row."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

from oscine.types import TICK_BOUNDS_S, TickHistogram

_SMOOTHING = 0.1
_MIN_STALL_S = 0.005
# Relative to the tick, and squared.
_TICK_VARIANCE = 0.25**2  # of one measurement
_FIRST_VARIANCE = 0.5**2  # of the machine's speed after the first tick
_SPEED_VARIANCE = 0.015**2  # added per tick, as other programs start and end: about the last sixteen ticks count
_PAUSE_VARIANCE = 0.5**2  # added per second without a tick, for one second at most
_DEVIATION, _DEVIATING_TICKS = 0.3, 4  # so many ticks in a row that deviate by this count like such a pause
_SHARE_VARIANCE = 0.5**2  # of how a tick divides into its two parts, before anything is known
_SHARE_FORGETTING = 1 / 10_000  # forgotten per tick


@dataclass(frozen=True, slots=True)
class TickCost:
    """The parts of a tick's cost. All are zero before the first tick, which is optimistic and corrected within a few
    ticks."""

    fixed_s: float = 0.0
    row_s: float = 0.0
    prefill_row_s: float = 0.0
    rows_seen: int = 0  # the largest batch measured without a prefill

    def tick_s(self, rows: int, prefill_rows: int = 0) -> float:
        return self.fixed_s + self.row_s * rows + self.prefill_row_s * prefill_rows

    def rows_within(self, limit_s: float, max_rows: int) -> int:
        """Returns the largest batch whose tick stays within `limit_s`, at least one row."""
        if self.tick_s(max_rows) <= limit_s:
            return max_rows
        return max(1, min(max_rows, int((limit_s - self.fixed_s) / self.row_s))) if self.row_s > 0 else 1


class TickCostModel:
    """A Kalman filter over the two parts of a tick without a prefill. When ticks of one batch size take longer, the
    machine has become slower, so both parts grow; how they divide is learned when the batch size changes. Ticks with a
    prefill only update the prefill's cost."""

    def __init__(self) -> None:
        self._variance = (0.0, 0.0, 0.0)  # of fixed_s, of both together, of row_s
        self._paused_s = 0.0  # since the last tick that updated the filter
        self._deviating = 0  # ticks in a row that took longer than expected; negative: shorter
        self.cost = TickCost()
        self.smooth_tick_s = 0.0
        self._counts = [0] * (len(TICK_BOUNDS_S) + 1)
        self._sum_s = 0.0

    @property
    def histogram(self) -> TickHistogram:
        return TickHistogram(tuple(self._counts), self._sum_s)

    def add(self, rows: int, prefill_rows: int, tick_s: float, *, timed: bool = True, paused_s: float = 0.0) -> None:
        """Learns from a tick and the pause before it. If not `timed`, the tick took at most `tick_s`, and is assumed to
        be no slower than expected."""
        self._paused_s = min(self._paused_s + paused_s, 1.0)
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
        fixed_s, row_s = self.cost.fixed_s, self.cost.row_s
        expected_s = fixed_s + row_s * rows
        if not expected_s:
            if not tick_s:
                return  # not timed, and the first one
            fixed_s = expected_s = tick_s
            share_s2 = _SHARE_VARIANCE * tick_s**2
            self._variance = (_FIRST_VARIANCE * tick_s**2 + share_s2, -share_s2 / rows, share_s2 / rows**2)
        # One stall (another process, a page fault) must not stop admission for seconds.
        error_s = min(tick_s, max(2 * expected_s, _MIN_STALL_S)) - expected_s
        # Several ticks that are all much slower, or all much faster, are not stalls: the machine has changed.
        deviates = 0 if abs(error_s) < _DEVIATION * expected_s else 1 if error_s > 0 else -1
        self._deviating = self._deviating + deviates if self._deviating * deviates > 0 else deviates
        if abs(self._deviating) >= _DEVIATING_TICKS:
            self._deviating, self._paused_s = 0, 1.0
        # The speed may change with each tick, and a little of the learned division is forgotten.
        speed, self._paused_s = _SPEED_VARIANCE + _PAUSE_VARIANCE * self._paused_s, 0.0
        share_s2, keep = _SHARE_VARIANCE * expected_s**2 * _SHARE_FORGETTING, 1 - _SHARE_FORGETTING
        of_fixed, of_both, of_row = self._variance
        of_fixed = of_fixed * keep + share_s2 + speed * fixed_s**2
        of_both = of_both * keep - share_s2 / rows + speed * fixed_s * row_s
        of_row = of_row * keep + share_s2 / rows**2 + speed * row_s**2
        # How much of the error belongs to each part.
        with_fixed, with_row = of_fixed + of_both * rows, of_both + of_row * rows
        total = with_fixed + with_row * rows + _TICK_VARIANCE * expected_s**2
        fixed_gain, row_gain = with_fixed / total, with_row / total
        self._variance = (
            of_fixed - fixed_gain * with_fixed,
            of_both - fixed_gain * with_row,
            of_row - row_gain * with_row,
        )
        fixed_s, row_s = fixed_s + fixed_gain * error_s, row_s + row_gain * error_s
        if row_s < 0:
            fixed_s, row_s = fixed_s + row_s * rows, 0.0
        elif fixed_s < 0:
            fixed_s, row_s = 0.0, row_s + fixed_s / rows
        self.cost = replace(self.cost, fixed_s=max(0.0, fixed_s), row_s=row_s)

    def _fit_prefill(self, rows: int, prefill_rows: int, tick_s: float) -> None:
        if not self.cost.rows_seen:
            return  # the cost of the frame itself is not known yet
        known_s = self.cost.prefill_row_s
        row_s = max(0.0, tick_s - self.cost.tick_s(rows)) / prefill_rows
        self.cost = replace(self.cost, prefill_row_s=known_s + (row_s - known_s) * (_SMOOTHING if known_s else 1.0))
