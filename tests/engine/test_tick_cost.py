from __future__ import annotations

import random

import pytest

from oscine.engine.tick_cost import TickCost, TickCostModel
from oscine.types import TICK_BOUNDS_S, TickHistogram


def test_the_line_is_found_through_noise() -> None:
    meter, rng = TickCostModel(), random.Random(1)
    for _ in range(200):
        rows = rng.randint(1, 32)
        meter.add(rows, 0, 0.004 + 0.0002 * rows + rng.gauss(0, 0.0001))
    assert meter.cost.fixed_s == pytest.approx(0.004, rel=0.15)
    assert meter.cost.row_s == pytest.approx(0.0002, rel=0.15)
    assert meter.cost.rows_seen == 32


def test_a_batch_that_never_changes_keeps_the_slope_that_was_known() -> None:
    meter = TickCostModel()
    for rows in [1, 2, 4, 8] * 5 + [8] * 500:
        meter.add(rows, 0, 0.01 + 0.001 * rows)
    assert meter.cost.row_s == pytest.approx(0.001, rel=0.1)
    assert meter.cost.tick_s(8) == pytest.approx(0.018, rel=0.01)


def test_a_batch_is_known_once_it_was_measured_without_a_prefill() -> None:
    meter = TickCostModel()
    meter.add(1, 0, 0.02)
    meter.add(16, 400, 0.5)
    assert meter.cost.rows_seen == 1


def test_prefill_has_its_own_price() -> None:
    meter = TickCostModel()
    meter.add(1, 30, 0.5)  # the first tick of all: nothing can be told apart yet
    for rows in [1, 2, 3, 4] * 10:
        meter.add(rows, 0, 0.005)
    for _ in range(50):
        meter.add(4, 20, 0.005 + 20 * 0.0001)
    assert meter.cost.prefill_row_s == pytest.approx(0.0001, rel=0.05)
    assert meter.cost.tick_s(4) == pytest.approx(0.005, rel=0.05)


def test_one_stall_does_not_shut_the_door() -> None:
    meter = TickCostModel()
    for rows in [1, 2, 3, 4] * 20:
        meter.add(rows, 0, 0.005)
    meter.add(4, 0, 2.0)
    assert meter.cost.tick_s(4) < 0.01


@pytest.mark.parametrize(
    ("cost", "rows"),
    [
        (TickCost(), 32),
        (TickCost(0.01, 0.0), 32),
        (TickCost(0.1, 0.0), 1),
        (TickCost(0.02, 0.001), 32),
        (TickCost(0.02, 0.002), 22),
        (TickCost(0.1, 0.1), 1),
    ],
)
def test_how_many_rows_a_tick_may_have(cost: TickCost, rows: int) -> None:
    assert cost.rows_within(0.064, 32) == rows


def test_every_tick_is_counted_by_its_length() -> None:
    meter = TickCostModel()
    assert meter.histogram == TickHistogram()
    for tick_s in (0.001, 0.002, 0.0021, 0.05, 1.0, 3.0, 7.0):
        meter.add(1, prefill_rows=4, tick_s=tick_s)
    counted = dict(zip([*TICK_BOUNDS_S, float("inf")], meter.histogram.counts, strict=True))
    assert {bound_s: count for bound_s, count in counted.items() if count} == {
        0.002: 2,
        0.004: 1,
        0.06: 1,
        1.0: 1,
        float("inf"): 2,
    }
    assert meter.histogram.sum_s == pytest.approx(11.0551)
