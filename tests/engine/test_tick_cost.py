from __future__ import annotations

import random

import pytest

from oscine.engine.tick_cost import TickCost, TickCostModel
from oscine.types import TICK_BOUNDS_S, TickHistogram


def test_the_cost_is_fitted_through_noise() -> None:
    model, rng = TickCostModel(), random.Random(1)
    for _ in range(200):
        rows = rng.randint(1, 32)
        model.add(rows, 0, 0.004 + 0.0002 * rows + rng.gauss(0, 0.0001))
    assert model.cost.fixed_s == pytest.approx(0.004, rel=0.15)
    assert model.cost.row_s == pytest.approx(0.0002, rel=0.15)
    assert model.cost.rows_seen == 32


def test_a_constant_batch_size_keeps_the_known_slope() -> None:
    model = TickCostModel()
    for rows in [1, 2, 4, 8] * 5 + [8] * 500:
        model.add(rows, 0, 0.01 + 0.001 * rows)
    assert model.cost.row_s == pytest.approx(0.001, rel=0.1)
    assert model.cost.tick_s(8) == pytest.approx(0.018, rel=0.01)


def test_a_tick_that_was_not_timed_is_no_slower_than_expected() -> None:
    model = TickCostModel()
    for _ in range(5):
        model.add(4, 0, 0.010)
    before = model.cost.tick_s(4)
    for _ in range(5):
        model.add(4, 0, 0.030, timed=False)
    assert model.cost.tick_s(4) == pytest.approx(before)


def test_a_batch_size_is_known_after_a_tick_without_a_prefill() -> None:
    model = TickCostModel()
    model.add(1, 0, 0.02)
    model.add(16, 400, 0.5)
    assert model.cost.rows_seen == 1


def test_prefill_has_its_own_cost() -> None:
    model = TickCostModel()
    model.add(1, 30, 0.5)  # the first tick of all: the frame and the prefill cannot be separated yet
    for rows in [1, 2, 3, 4] * 10:
        model.add(rows, 0, 0.005)
    for _ in range(50):
        model.add(4, 20, 0.005 + 20 * 0.0001)
    assert model.cost.prefill_row_s == pytest.approx(0.0001, rel=0.05)
    assert model.cost.tick_s(4) == pytest.approx(0.005, rel=0.05)


def test_one_stall_does_not_stop_admission() -> None:
    model = TickCostModel()
    for rows in [1, 2, 3, 4] * 20:
        model.add(rows, 0, 0.005)
    model.add(4, 0, 2.0)
    assert model.cost.tick_s(4) < 0.01


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
def test_rows_within_a_time_limit(cost: TickCost, rows: int) -> None:
    assert cost.rows_within(0.064, 32) == rows


def test_every_tick_is_counted_in_the_histogram() -> None:
    model = TickCostModel()
    assert model.histogram == TickHistogram()
    for tick_s in (0.001, 0.002, 0.0021, 0.05, 1.0, 3.0, 7.0):
        model.add(1, prefill_rows=4, tick_s=tick_s)
    counted = dict(zip([*TICK_BOUNDS_S, float("inf")], model.histogram.counts, strict=True))
    assert {bound_s: count for bound_s, count in counted.items() if count} == {
        0.002: 2,
        0.004: 1,
        0.06: 1,
        1.0: 1,
        float("inf"): 2,
    }
    assert model.histogram.sum_s == pytest.approx(11.0551)
