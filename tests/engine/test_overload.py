"""Many listeners, more than fit: who is let in never hears a gap, the others are refused at once."""

from __future__ import annotations

import dataclasses
import random

import pytest
from tests.engine.scripted import PLAIN, Listener, ScriptedRunner, session_of

from oscine.config import ChunkConfig
from oscine.engine.loop import EngineLoop
from oscine.types import OverloadedError

CONFIG = dataclasses.replace(PLAIN, chunks=ChunkConfig(), queue_limit=16, queue_wait_s=2.0)


def drive(runner: ScriptedRunner, arrivals: list[tuple[float, int]]) -> tuple[list[Listener], int, list[float]]:
    """Open loop: (time, frames) of each request. Gives the accepted listeners, the refusals and their retry times."""
    loop = EngineLoop(runner, CONFIG, runner.clock)
    listeners: list[Listener] = []
    retries_s: list[float] = []
    coming = sorted(arrivals, reverse=True)
    while True:
        while coming and coming[-1][0] <= runner.clock.now_s:
            listener = Listener(runner.clock)
            frames = coming.pop()[1]
            tag = len(listeners) % 30 + 1
            session = session_of(tag, frames, listener, CONFIG, text_ids=frames // 4)
            session.utterance_id = f"{len(listeners)}-{len(retries_s)}"
            try:
                loop.submit(session)
                listeners.append(listener)
            except OverloadedError as error:
                retries_s.append(error.retry_after_s)
        if not loop.turn():
            if not coming:
                break
            runner.clock.now_s = coming[-1][0]
    assert not runner.held and loop.status().slots_active == loop.status().queued == 0
    return listeners, len(retries_s), retries_s


def poisson(rate_hz: float, seconds: float, seed: int) -> list[tuple[float, int]]:
    rng = random.Random(seed)
    arrivals, at_s = [], 0.0
    while (at_s := at_s + rng.expovariate(rate_hz)) < seconds:
        arrivals.append((at_s, rng.randint(10, 90)))
    return arrivals


# (fixed, per row, per prefilled row): a large GPU, a small one, and a CPU that can keep five streams at most.
MACHINES = {
    "h200": (0.0035, 0.00003, 0.00002, 32),
    "small gpu": (0.020, 0.001, 0.0001, 32),
    "cpu": (0.004, 0.011, 0.0003, 16),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_at_three_times_the_load_nobody_hears_a_gap(machine: str, seed: int) -> None:
    fixed_s, row_s, prefill_row_s, slots = MACHINES[machine]
    runner = ScriptedRunner(slots, fixed_s=fixed_s, row_s=row_s, prefill_row_s=prefill_row_s)
    rows = min(slots, int((0.064 - fixed_s) / row_s))
    capacity_hz = rows / (fixed_s + row_s * rows) / 50  # 50 frames a request on average
    seconds = min(20.0, 600 / capacity_hz)
    arrivals = poisson(3 * capacity_hz, seconds, seed)
    listeners, refused, retries_s = drive(runner, arrivals)
    assert [listener.ends for listener in listeners] == [["stop"]] * len(listeners)
    assert sum(listener.underrun_s() > 0.001 for listener in listeners) == 0
    assert refused > len(arrivals) / 3 and all(0.1 <= retry_s <= 60 for retry_s in retries_s)
    # Refusing must not be an excuse: the machine is busy.
    assert len(listeners) > 0.7 * capacity_hz * seconds


def test_at_half_the_load_nobody_is_refused() -> None:
    fixed_s, row_s, prefill_row_s, slots = MACHINES["h200"]
    runner = ScriptedRunner(slots, fixed_s=fixed_s, row_s=row_s, prefill_row_s=prefill_row_s)
    capacity_hz = slots / (fixed_s + row_s * slots) / 50
    listeners, refused, _ = drive(runner, poisson(capacity_hz / 2, 4.0, seed=1))
    assert refused == 0 and sum(listener.underrun_s() for listener in listeners) == 0
