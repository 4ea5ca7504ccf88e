"""Warm-up over a scripted runner in virtual time, independent of the speed of this machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oscine.engine.build import warm_up
from oscine.engine.in_process import InProcessEngine
from oscine.errors import ConfigError
from tests.engine.conftest import MakeEngine
from tests.engine.recorder import wait_until
from tests.engine.scripted_runner import PLAIN, ScriptedRunner

COLD_S = 0.5


class WarmUp:
    """Runs a warm-up. The first launch of each batch waits until the whole batch is submitted."""

    def __init__(self, make_engine: MakeEngine, slots: int, **costs: float) -> None:
        self.config = replace(PLAIN, slots=slots)
        self.runner = ScriptedRunner(slots, fail=self._before, min_frames=50, **costs)  # type: ignore[arg-type]
        self.engine: InProcessEngine = make_engine(self.config, runner=self.runner)
        self.progress: list[tuple[str, int, int]] = []
        self.awaited = 0

    def run(self) -> None:
        warm_up(self.engine, self.config, self._report)

    def _report(self, stage: str, done: int, total: int) -> None:
        self.awaited = self.config.buckets[done] if done < total else 0
        self.progress.append((stage, done, total))

    def _before(self, stage: str, tag: int) -> None:
        if stage == "launch" and self.awaited:
            wait_until(lambda: self._submitted() >= self.awaited)
            self.awaited = 0
        elif stage == "collect":
            self.runner.fixed_s = min(self.runner.fixed_s, 0.005)  # only the first launch is cold

    def _submitted(self) -> int:
        status = self.engine.status()
        return status.slots_active + status.queued


def test_the_warm_up_measures_every_batch_size_although_the_first_tick_is_cold(make_engine: MakeEngine) -> None:
    warm = WarmUp(make_engine, slots=4, fixed_s=COLD_S, row_s=0.001)
    warm.run()
    assert warm.engine.cost.rows_seen == 4 == max(map(len, warm.runner.launches))
    assert 0 < warm.engine.cost.tick_s(1) < COLD_S / 5
    assert warm.progress == [("warm-up", done, 3) for done in range(4)]


def test_the_warm_up_ends_where_real_time_ends(make_engine: MakeEngine) -> None:
    warm = WarmUp(make_engine, slots=8, row_s=0.05)  # two rows take 105 ms, longer than a frame
    warm.run()
    assert max(map(len, warm.runner.launches)) == 2 and warm.progress[-1] == ("warm-up", 4, 4)


def test_a_warm_up_is_not_refused_on_a_machine_that_stalls(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first tick of each batch lasts longer than a request may wait for a slot, and only one request is in it."""
    warm = WarmUp(make_engine, slots=4)
    wait_for_batch, enqueue = warm.runner.fail, warm.engine.enqueue

    def enqueue_after_the_first(*arguments: Any) -> None:
        wait_until(lambda: not warm.engine.status().queued or warm.engine.status().slots_active > 0)
        enqueue(*arguments)

    monkeypatch.setattr(warm.engine, "enqueue", enqueue_after_the_first)

    def stall(stage: str, tag: int) -> None:
        is_first = stage == "launch" and warm.awaited > 0
        wait_for_batch(stage, tag)
        if is_first:
            warm.runner.clock.now_s += 2 * warm.config.queue_wait_s

    warm.runner.fail = stall
    warm.run()
    assert warm.engine.cost.rows_seen == 4 and warm.progress[-1] == ("warm-up", 3, 3)


def test_settings_without_room_for_an_utterance_are_refused(make_engine: MakeEngine) -> None:
    warm = WarmUp(make_engine, slots=1, positions=10)
    with pytest.raises(ConfigError, match="no room for one short utterance"):
        warm.run()
