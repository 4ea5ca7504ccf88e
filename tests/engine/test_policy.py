from __future__ import annotations

import random

from oscine.config import PacingConfig
from oscine.engine.policy import Running, Snapshot, Step, Waiting, choose_step
from oscine.engine.tick_cost import TickCost

PACING = PacingConfig()
FAST = TickCost(0.004, 0.00003, 0.00002, rows_seen=128)
NOW_S = 100.0


def playing(*ahead_s: float | None) -> tuple[Running, ...]:
    return tuple(Running(slot, True, None if ahead is None else NOW_S + ahead) for slot, ahead in enumerate(ahead_s))


def choose(
    running: tuple[Running, ...], waiting: tuple[int | Waiting, ...] = (), free: int = 4, cost: TickCost = FAST
) -> Step:
    """A number stands for a new request with that many prompt rows."""
    queue = tuple(one if isinstance(one, Waiting) else Waiting(one) for one in waiting)
    return choose_step(Snapshot(running, queue, free), NOW_S, cost, PACING)


def test_with_free_slots_every_stream_runs_at_full_speed() -> None:
    slow = TickCost(0.05, 0.01, 0.001, rows_seen=128)
    assert choose(playing(0.1, 30.0, None), cost=slow).run == (0, 1, 2)


def test_a_stream_that_waits_for_text_does_not_run() -> None:
    running = (Running(0, False, NOW_S - 5), Running(1, True, NOW_S + 1))
    assert choose(running, waiting=(10,)) == Step(1, (1,))


def test_when_slots_are_scarce_a_short_tick_still_runs_every_stream() -> None:
    assert sorted(choose(playing(0.2, 5.0, 9.0), free=0).run) == [0, 1, 2]


def test_when_slots_are_scarce_and_ticks_long_streams_far_ahead_skip_first() -> None:
    slow = TickCost(0.005, 0.02, 0.0, rows_seen=128)
    run = choose(playing(0.2, 5.0, None, 1.5, 3.0), free=0, cost=slow).run
    assert set(run) == {2, 0}, "below the lead; with a third the tick would miss what slot 0 has left"


def test_streams_below_the_lead_never_skip() -> None:
    slow = TickCost(0.005, 0.05, 0.0, rows_seen=128)
    assert set(choose(playing(0.5, 0.9, None), free=0, cost=slow).run) == {0, 1, 2}


def test_without_an_urgent_stream_every_stream_runs() -> None:
    slow = TickCost(0.05, 0.02, 0.0, rows_seen=128)
    assert set(choose(playing(5.0, 9.0), free=0, cost=slow).run) == {0, 1}


def test_prompt_rows_since_the_last_launch_count_for_the_next_frame() -> None:
    waiting, limit = (Waiting(200), Waiting(200), Waiting(200)), PACING.prefill_rows_per_tick
    admitted = [
        choose_step(Snapshot((), waiting, 4, rows), NOW_S, FAST, PACING).admit for rows in (0, limit - 300, limit)
    ]
    assert admitted == [3, 1, 0]


def test_the_first_request_is_always_admitted() -> None:
    hopeless = TickCost(5.0, 5.0, 5.0, rows_seen=1)
    assert choose((), waiting=(5000, 10), cost=hopeless).admit == 1


def test_no_request_is_admitted_if_a_tick_of_all_streams_would_exceed_a_frame() -> None:
    cost = TickCost(0.004, 0.02, 0.0, rows_seen=128)  # three rows fit into 64 ms
    assert choose(playing(1.0, 1.0), waiting=(10, 10, 10), cost=cost).admit == 1
    assert choose(playing(1.0, 1.0, 1.0), waiting=(10,), cost=cost).admit == 0


def test_a_prefill_waits_until_no_stream_would_run_dry() -> None:
    cost = TickCost(0.004, 0.0, 0.001, rows_seen=128)
    assert choose(playing(0.05), waiting=(100,), cost=cost).admit == 0
    assert choose(playing(0.15), waiting=(100,), cost=cost).admit == 1
    dry = (Running(0, True, None), Running(1, False, NOW_S + 0.01))
    assert choose(dry, waiting=(100,), cost=cost).admit == 1, "neither can be harmed"


def continues(rows: int, ahead_s: float | None = None) -> Waiting:
    return Waiting(rows, continues=True, deadline_s=None if ahead_s is None else NOW_S + ahead_s)


def test_a_continuation_needs_a_slot_but_skips_the_steady_state_check() -> None:
    cost = TickCost(0.004, 0.02, 0.0, rows_seen=128)  # three rows fit into 64 ms
    three = playing(1.0, 1.0, 1.0)
    assert choose(three, waiting=(continues(10), 10), cost=cost).admit == 1
    assert choose(three, waiting=(continues(10), continues(10), 10), cost=cost).admit == 2
    assert choose(three, waiting=(continues(10),), free=0, cost=cost).admit == 0
    assert choose(playing(1.0), waiting=(continues(10), 10, 10), cost=cost).admit == 2, "a new request still needs it"


def test_a_continuation_makes_no_stream_run_dry() -> None:
    cost = TickCost(0.004, 0.0, 0.001, rows_seen=128)
    assert choose(playing(0.05), waiting=(continues(100),), cost=cost).admit == 0
    assert choose(playing(0.05), waiting=(continues(100), 1), cost=cost).admit == 0, "and no request overtakes"
    assert choose(playing(0.15), waiting=(continues(100),), cost=cost).admit == 1


def test_a_new_request_does_not_make_a_continuation_run_dry() -> None:
    cost = TickCost(0.004, 0.0, 0.001, rows_seen=128)
    assert choose((), waiting=(continues(10, 0.05), 100), cost=cost).admit == 1
    assert choose((), waiting=(continues(10, 0.50), 100), cost=cost).admit == 2
    assert choose((), waiting=(continues(10), 100), cost=cost).admit == 2, "it has run dry already"
    slow = TickCost(0.005, 0.01, 0.0, rows_seen=128)
    assert len(choose(playing(5.0, 5.0, 5.0), waiting=(continues(10, 0.06),), free=1, cost=slow).run) == 1
    assert len(choose(playing(5.0, 5.0, 5.0), waiting=(continues(10, 5.00),), free=1, cost=slow).run) == 3


def test_admissions_of_one_tick_are_bounded() -> None:
    assert choose((), waiting=(1200, 1200, 1200), free=8).admit == 1
    assert choose((), waiting=(800, 800, 800), free=8).admit == 2
    assert choose((), waiting=(20,) * 9, free=8).admit == 8
    assert choose((), waiting=(20,) * 9, free=8, cost=TickCost()).admit == 4, "nothing is known yet"


def test_a_step_is_always_possible() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        running = tuple(
            Running(slot, rng.random() < 0.8, rng.choice([None, NOW_S + rng.uniform(-1, 5)]))
            for slot in range(rng.randint(0, 6))
        )
        newcomers = tuple(Waiting(rng.randint(1, 600)) for _ in range(rng.randint(0, 4)))
        ahead_s = rng.choice([None, rng.random()])
        waiting = (*(continues(rng.randint(1, 600), ahead_s) for _ in range(rng.randint(0, 2))), *newcomers)
        free = rng.randint(0, 3)
        cost = TickCost(rng.random() * 0.1, rng.random() * 0.05, rng.random() * 0.001, rng.randint(0, 8))
        step = choose(running, waiting, free, cost)
        can_run = {stream.slot for stream in running if stream.can_run}
        assert 0 <= step.admit <= min(free, len(waiting))
        assert set(step.run) <= can_run and len(set(step.run)) == len(step.run)
        assert step.run or not can_run, "a stream runs if any can"
        assert step.admit or running or not (waiting and free), "an empty engine admits a request"
