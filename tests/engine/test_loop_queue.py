"""Waiting for a slot: how long, and in which order."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from oscine.engine.admission import PromptReady, TextAppended
from oscine.errors import OverloadedError
from oscine.types import AudioChunk
from tests.engine.scripted_runner import END_MARK, PLAIN, Listener, prompt_of, session_of
from tests.engine.test_loop import Rig

PATIENT = dataclasses.replace(PLAIN, text_wait_s=1000.0)


def paused(rig: Rig, tag: int) -> Listener:
    """A streaming text that holds a slot and says no further word."""
    listener = Listener(rig.runner.clock)
    rig.loop.submit(session_of(tag, 8, listener, rig.config, streaming_text=True))
    rig.loop.post(PromptReady(str(tag), prompt_of(trailing=(5, 6)), text_ids=2, text_ended=False))
    rig.ticks(4)
    return listener


@pytest.mark.parametrize("queue_wait_s", [3.0, 5.0])
def test_a_request_that_gets_no_slot_in_time_is_refused(queue_wait_s: float) -> None:
    rig = Rig(slots=1, config=dataclasses.replace(PATIENT, queue_wait_s=queue_wait_s))
    paused(rig, 1)
    waiting = rig.say(2, frames=5)
    rig.runner.clock.now_s += queue_wait_s - 0.1
    rig.run()
    assert not waiting.chunks and rig.loop.status().queued == 1
    rig.runner.clock.now_s += 0.2
    rig.run()
    assert waiting.ends == ["error"] and rig.loop.status().queued == 0
    assert isinstance(waiting.error, OverloadedError) and waiting.error.retry_after_s > 0
    assert f"no slot became free within {queue_wait_s:g} s" in str(waiting.error)


def test_a_request_that_must_start_at_once_still_gets_a_tick() -> None:
    rig = Rig(slots=1, config=dataclasses.replace(PATIENT, queue_wait_s=0.0))
    rig.runner.clock.now_s = 10.0
    speaking = rig.say(1, frames=3)
    rig.runner.clock.now_s += 0.5  # the loop was busy
    rig.run()
    assert speaking.ends == ["stop"]


def test_continuations_wait_as_long_as_it_takes() -> None:
    rig = Rig(slots=1, config=PATIENT)
    paused(rig, 1)
    waiting = [rig.say(2, frames=5, continues=True), rig.say(3, frames=5, continues=True, resumes=True)]
    rig.runner.clock.now_s += 100.0
    rig.run()
    rig.loop.post(TextAppended("1", (END_MARK,), 0, ended=True))
    rig.run()
    assert [listener.ends for listener in waiting] == [["stop"], ["stop"]]


def test_a_streaming_text_is_expected_to_last_as_long_again() -> None:
    """Its few words so far say nothing about its end: a retry time made of them would be wrong every time."""
    rig = Rig(slots=1, config=dataclasses.replace(PATIENT, slots=1))
    paused(rig, 1)
    rig.runner.clock.now_s += 20.0
    with pytest.raises(OverloadedError) as refused:
        rig.say(2, frames=5)
    assert refused.value.retry_after_s > 10


def test_a_resumed_speech_goes_before_new_requests_and_after_continuations() -> None:
    rig = Rig(slots=1)
    rig.say(1, frames=5)
    rig.ticks(2)
    new = rig.say(2, frames=5)
    resumed = rig.say(3, frames=5, continues=True, resumes=True)
    continuation = rig.say(4, frames=5, continues=True)
    rig.run()
    assert continuation.arrived_s[0] < resumed.arrived_s[0] < new.arrived_s[0]


def test_a_resumed_speech_takes_no_place_that_the_device_does_not_have() -> None:
    """Its slot was given to another stream, so it is no longer counted."""
    rig = Rig(slots=8, fixed_s=0.03, row_s=0.01)  # three streams in real time
    for tag in range(1, 9):
        rig.say(tag, frames=3)
    rig.run()  # the cost of a tick is known
    running = [rig.say(tag, frames=40) for tag in (11, 12, 13)]
    rig.ticks(3)
    assert rig.loop.status().slots_active == 3
    resumed = rig.say(14, frames=5, continues=True, resumes=True)
    rig.ticks(5)
    assert rig.loop.status().slots_active == 3 and not resumed.chunks
    continuation = rig.say(15, frames=5, continues=True)
    rig.run()
    assert continuation.arrived_s[0] < resumed.arrived_s[0]
    assert [listener.ends for listener in (*running, resumed, continuation)] == [["stop"]] * 5


def test_refused_requests_get_different_retry_times() -> None:
    """Equal retry times would bring all of them back at once, and most would be refused again."""
    rig = Rig(slots=1, config=dataclasses.replace(PLAIN, slots=1, queue_limit=0, queue_wait_s=0.0), fixed_s=0.04)
    rig.say(1, frames=200, text_ids=50)
    rig.ticks(20)
    retries_s = []
    for tag in range(2, 7):
        with pytest.raises(OverloadedError) as refused:
            rig.say(tag, frames=40, text_ids=10)
        retries_s.append(refused.value.retry_after_s)
    waits_s = [later - sooner for sooner, later in itertools.pairwise(retries_s)]
    assert waits_s == pytest.approx([40 * 0.04] * 4, rel=0.2)
    rig.runner.clock.now_s += 1.1  # the burst is over
    with pytest.raises(OverloadedError) as again:
        rig.say(7, frames=40, text_ids=10)
    assert again.value.retry_after_s < retries_s[2]


def test_requests_that_arrive_in_the_middle_of_an_admission_wait() -> None:
    """Another thread submits them when all slots are taken and none of their streams runs yet."""
    rig = Rig(slots=1)
    late: list[Listener] = []

    def submit(stage: str, tag: int) -> None:
        if stage == "launch" and not late:
            late.extend(rig.say(tag, frames=3) for tag in (2, 3))

    rig.runner.fail = submit
    first = rig.say(1, frames=5)
    rig.run()
    assert [listener.ends for listener in (first, *late)] == [["stop"]] * 3


def test_a_request_that_follows_the_last_chunk_of_another_has_its_slot() -> None:
    config = dataclasses.replace(PLAIN, slots=1, queue_limit=0, queue_wait_s=0.0)
    rig, followers = Rig(slots=1, config=config), list[Listener]()

    def follow(chunk: AudioChunk) -> None:
        if chunk.finish_reason:
            followers.append(rig.say(2, frames=3))

    rig.loop.submit(session_of(1, 3, follow, config))
    rig.run()
    assert [listener.ends for listener in followers] == [["stop"]]


def test_a_machine_that_slept_for_an_hour_goes_on_where_it_stood() -> None:
    rig = Rig(slots=1)
    running, waiting = rig.say(1, frames=30), rig.say(2, frames=5)
    rig.ticks(5)
    rig.runner.clock.now_s += 3600.0
    rig.run()
    assert running.ends == ["stop"] and len(running.frames) == 30
    assert isinstance(waiting.error, OverloadedError)
    rig.check_idle()
    assert rig.say(3, frames=5) and not rig.run() and rig.loop.status().ready
