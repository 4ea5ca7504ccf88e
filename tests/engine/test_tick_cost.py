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


SIZES = [1, 2, 4, 8] * 20


def learned(fixed_s: float = 0.012, row_s: float = 0.004) -> TickCostModel:
    model = TickCostModel()
    for rows in SIZES:
        model.add(rows, 0, fixed_s + row_s * rows)
    return model


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
@pytest.mark.parametrize("rows", [1, 8])
def test_when_the_machine_changes_its_speed_all_batch_sizes_change(rows: int, factor: float) -> None:
    """Another program starts or ends. Ticks of one size say how long those of other sizes take now."""
    model = learned()
    for _ in range(40):
        model.add(rows, 0, factor * (0.012 + 0.004 * rows))
    for other in (1, 4, 8, 12):
        assert model.cost.tick_s(other) == pytest.approx(factor * (0.012 + 0.004 * other), rel=0.25)


def test_after_a_pause_a_few_ticks_show_the_new_speed() -> None:
    """The machine may have changed meanwhile, so they count more than what was learned before."""
    model, unpaused = learned(), learned()
    for tick in range(3):
        model.add(1, 0, 0.5 * 0.016, paused_s=60.0 if tick == 0 else 0.0)
        unpaused.add(1, 0, 0.5 * 0.016)
    assert model.cost.tick_s(8) == pytest.approx(0.5 * 0.044, rel=0.15)
    assert unpaused.cost.tick_s(8) > 0.8 * 0.044


def test_two_slow_ticks_among_forty_hardly_count() -> None:
    model, rng = learned(), random.Random(2)
    for tick in range(40):
        model.add(8, 0, 0.044 * (20.0 if tick in (15, 30) else rng.uniform(0.9, 1.1)))
    assert model.cost.tick_s(8) == pytest.approx(0.044, rel=0.15)
    assert model.cost.tick_s(1) == pytest.approx(0.016, rel=0.25)


def test_a_tick_that_was_not_timed_is_no_slower_than_expected() -> None:
    model = TickCostModel()
    for _ in range(5):
        model.add(4, 0, 0.010)
    before = model.cost.tick_s(4)
    for _ in range(5):
        model.add(4, 0, 0.030, timed=False)
    assert model.cost.tick_s(4) == pytest.approx(before)


def test_a_first_tick_that_was_not_timed_says_nothing() -> None:
    model = TickCostModel()
    model.add(1, 0, 0.5, timed=False)
    assert model.cost.tick_s(1) == 0.0
    model.add(1, 0, 0.02)
    assert model.cost.tick_s(1) == 0.02


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
