"""The loop, driven tick by tick over a ScriptedRunner in virtual time."""

from __future__ import annotations

import dataclasses
import random

import pytest

from oscine.config import EngineConfig, PacingConfig, RunawayConfig
from oscine.engine.admission import EndSession, PromptReady, Shutdown, TextAppended
from oscine.engine.loop import EngineLoop, Slots
from oscine.errors import EngineError, OverloadedError, RequestError, TooLongError
from oscine.types import TickHistogram, Usage
from tests.engine.scripted_runner import END_MARK, PLAIN, Listener, ScriptedRunner, prompt_of, session_of


class Rig:
    def __init__(self, slots: int = 4, config: EngineConfig = PLAIN, **runner: object) -> None:
        self.runner = ScriptedRunner(slots, **runner)  # type: ignore[arg-type]
        self.config = config
        self.loop = EngineLoop(self.runner, config, self.runner.clock)

    def say(self, tag: int, frames: int, fails_at: int | None = None, **options: object) -> Listener:
        listener = Listener(self.runner.clock, fails_at)
        self.loop.submit(session_of(tag, frames, listener, self.config, **options))  # type: ignore[arg-type]
        return listener

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.loop.tick()

    def run(self, max_ticks: int = 10_000) -> None:
        """Runs until there is nothing to do."""
        for _ in range(max_ticks):
            if not self.loop.tick():
                return
        raise AssertionError("it never becomes idle")

    def check_idle(self) -> None:
        assert not self.runner.held and not self.runner.flying
        status = self.loop.status()
        assert (status.slots_active, status.queued) == (0, 0)


def test_every_frame_is_delivered_once_and_in_order() -> None:
    rig = Rig()
    listeners = [rig.say(tag, frames=5 + tag) for tag in range(1, 4)]
    rig.run()
    for tag, listener in enumerate(listeners, start=1):
        assert listener.ends == ["stop"]
        assert [(owner, frame) for owner, frame, _ in listener.frames] == [(tag, frame) for frame in range(5 + tag)]
    rig.check_idle()
    assert rig.loop.status().frames >= 6 + 7 + 8


def test_a_frame_is_launched_before_the_previous_one_is_collected() -> None:
    rig = Rig()
    rig.say(1, frames=3)
    rig.ticks(2)
    assert len(rig.runner.launches) == 2 and len(rig.runner.flying) == 1
    rig.run()
    # Frames 0, 1, 2, the end of speech, and the frame in flight when the end was read.
    assert len(rig.runner.launches) == 5


def test_the_first_chunk_of_a_newcomer_leaves_before_the_chunks_of_running_streams() -> None:
    chunks = dataclasses.replace(PLAIN.chunks, steady_chunk_frames=1)
    rig = Rig(config=dataclasses.replace(PLAIN, chunks=chunks))
    order: list[int] = []

    def say(tag: int) -> None:
        rig.loop.submit(session_of(tag, 20, lambda chunk: order.append(tag), rig.config))

    say(1)
    say(2)
    rig.ticks(5)
    say(3)
    while 3 not in order:
        order.clear()
        rig.ticks(1)
    assert order == [3, 1, 2]


def test_speech_without_a_frame_ends_too() -> None:
    rig = Rig()
    listener = rig.say(1, frames=0)
    rig.run()
    assert (listener.pcm, listener.ends) == (b"", ["stop"])
    rig.check_idle()


@pytest.mark.parametrize(("limited", "frames", "reason"), [(5, 100, "length"), (5, 4, "stop"), (2, 100, "length")])
def test_max_new_tokens_counts_draws_not_frames(limited: int, frames: int, reason: str) -> None:
    rig = Rig()
    listener = rig.say(1, frames=frames, max_new_tokens=limited)
    rig.run()
    assert len(listener.frames) == limited - 1 and listener.ends == [reason]


def test_a_request_without_max_new_tokens_has_a_frame_budget() -> None:
    runaway = RunawayConfig(budget_frames=12, budget_frames_per_text_id=8.0)
    rig = Rig(config=dataclasses.replace(PLAIN, runaway=runaway))
    listener = rig.say(1, frames=900, text_ids=2)
    rig.run()
    assert len(listener.frames) == 28 and listener.ends == ["runaway"]
    limited = rig.say(2, frames=900, text_ids=2, max_new_tokens=101)
    rig.run()
    assert len(limited.frames) == 100 and limited.ends == ["length"]


def test_a_cancelled_slot_is_reused_within_one_frame() -> None:
    rig = Rig(slots=1)
    first, second = rig.say(1, frames=100), rig.say(2, frames=3)
    rig.ticks(6)
    rig.loop.post(EndSession("1"))
    launches = len(rig.runner.launches)
    rig.ticks(1)
    assert first.ends == ["cancelled"]
    assert len(rig.runner.launches) == launches + 1 and rig.runner.held[0].tag == 2
    rig.run()
    assert {owner for owner, _, _ in first.frames} == {1}
    assert [frame for _, frame, _ in second.frames] == [0, 1, 2] and {owner for owner, _, _ in second.frames} == {2}
    rig.check_idle()


def test_a_waiting_request_can_be_cancelled() -> None:
    rig = Rig(slots=1)
    rig.say(1, frames=5)
    waiting = rig.say(2, frames=5)
    rig.ticks(2)
    rig.loop.post(EndSession("2"))
    rig.loop.post(EndSession("never was"))
    rig.run()
    assert (waiting.pcm, waiting.ends) == (b"", ["cancelled"])
    rig.check_idle()


# --- streaming text ---


def test_a_stream_without_text_pauses_and_blocks_no_other() -> None:
    rig = Rig()
    listener = Listener(rig.runner.clock)
    rig.loop.submit(session_of(1, 4, listener, streaming_text=True))
    other = rig.say(2, frames=30)
    rig.ticks(3)
    assert rig.loop.status().slots_active == 1, "no slot before the first word"
    rig.loop.post(PromptReady("1", prompt_of(trailing=[11, 12]), text_ids=3, text_ended=False))
    rig.run()
    assert other.ends == ["stop"]
    assert [text for _, _, text in listener.frames] == [11, 12], "everything that could be spoken was delivered"
    rig.loop.post(TextAppended("1", (13,), 1, ended=False))
    rig.run()
    rig.loop.post(TextAppended("1", (14, END_MARK), 1, ended=True))
    rig.run()
    assert listener.ends == ["stop"]
    assert [text for _, _, text in listener.frames] == [11, 12, 13, 14, END_MARK]
    rig.check_idle()


def test_text_that_arrives_while_waiting_for_a_slot_is_kept() -> None:
    rig = Rig(slots=1)
    rig.say(1, frames=5)
    listener = Listener(rig.runner.clock)
    rig.loop.submit(session_of(2, 6, listener, streaming_text=True))
    rig.loop.post(PromptReady("2", prompt_of(trailing=[11]), text_ids=2, text_ended=False))
    rig.ticks(2)
    rig.loop.post(TextAppended("2", (12, 13), 2, ended=False))
    rig.loop.post(TextAppended("2", (END_MARK,), 0, ended=True))
    rig.run()
    assert [text for _, _, text in listener.frames] == [11, 12, 13, END_MARK, 0, 0]
    assert listener.ends == ["stop"]


def test_a_text_that_never_arrives_ends_its_stream() -> None:
    rig = Rig()
    wordless, stuck = Listener(rig.runner.clock), Listener(rig.runner.clock)
    rig.loop.submit(session_of(1, 4, wordless, streaming_text=True))
    rig.loop.submit(session_of(2, 4, stuck, streaming_text=True))
    rig.loop.post(PromptReady("2", prompt_of(trailing=[11]), text_ids=2, text_ended=False))
    rig.run()
    rig.runner.clock.now_s += PLAIN.text_wait_s + 1
    rig.run()
    assert wordless.ends == stuck.ends == ["error"] and isinstance(stuck.chunks[-1].error, RequestError)
    assert len(stuck.frames) == 1
    rig.check_idle()


# --- failures ---


@pytest.mark.parametrize("stage", ["admit", "append"])
def test_a_failure_of_one_request_ends_that_request_only(stage: str) -> None:
    def fail(at: str, tag: int) -> None:
        if at == stage and tag == 2:
            raise RuntimeError("poisoned")

    rig = Rig(fail=fail)
    others = [rig.say(1, frames=20), rig.say(3, frames=20)]
    poisoned = Listener(rig.runner.clock)
    rig.loop.submit(session_of(2, 6, poisoned, streaming_text=True))
    rig.loop.post(PromptReady("2", prompt_of(trailing=[11]), text_ids=2, text_ended=False))
    rig.ticks(4)
    rig.loop.post(TextAppended("2", (12,), 1, ended=False))
    rig.run()
    assert poisoned.ends == ["error"] and "poisoned" in str(poisoned.chunks[-1].error)
    assert [listener.ends for listener in others] == [["stop"]] * 2
    assert [len(listener.frames) for listener in others] == [20, 20]
    rig.check_idle()


def test_logits_that_are_not_finite_end_their_stream_with_an_error() -> None:
    rig = Rig(not_finite=frozenset({2}))
    listeners = [rig.say(tag, frames=6) for tag in (1, 2, 3)]
    rig.run()
    assert [listener.ends for listener in listeners] == [["stop"], ["error"], ["stop"]]
    error = listeners[1].chunks[-1].error
    assert isinstance(error, RequestError) and error.param == "voice" and "not finite" in str(error)
    assert not listeners[1].pcm
    rig.check_idle()


@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_a_runner_that_fails_once_ends_running_streams_and_continues(stage: str) -> None:
    broken = [True]

    def fail(at: str, tag: int) -> None:
        if at == stage and tag == 1 and broken:
            broken.clear()
            raise RuntimeError("a bad moment")

    rig = Rig(slots=2, fail=fail)
    running = [rig.say(1, frames=20), rig.say(2, frames=20)]
    waiting = rig.say(3, frames=20)
    rig.run()
    assert [listener.ends for listener in running] in ([["error"], ["error"]], [["error"], ["stop"]])
    assert isinstance(running[0].chunks[-1].error, EngineError)
    assert waiting.ends == ["stop"] and len(waiting.frames) == 20
    assert rig.loop.status().ready
    rig.check_idle()


@pytest.mark.parametrize("stage", ["launch", "collect", "admit"])
def test_a_dead_runner_ends_the_engine(stage: str) -> None:
    def fail(at: str, tag: int) -> None:
        if at == stage:
            raise EngineError("the device does not answer")

    rig = Rig(slots=1, fail=fail)
    listeners = [rig.say(1, frames=20), rig.say(2, frames=20)]
    rig.ticks(10)
    assert [listener.ends for listener in listeners] == [["error"]] * 2
    assert not rig.loop.status().ready and rig.loop.finished
    with pytest.raises(EngineError, match="failed and stopped"):
        rig.say(3, frames=5)


def test_a_device_that_fails_while_the_loop_sleeps_ends_the_engine() -> None:
    def begun() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    rig = Rig(config=dataclasses.replace(PLAIN, pacing=PacingConfig(launch_margin_s=0.001)))
    listener = rig.say(1, frames=20)
    while rig.loop.tick():
        pass
    rig.runner.flying[-1].begun = begun  # type: ignore[method-assign]
    rig.loop.run()
    assert listener.ends == ["error"]
    assert not rig.loop.status().ready and rig.loop.finished


def test_repeated_failures_of_the_runner_end_the_engine() -> None:
    def fail(at: str, tag: int) -> None:
        if at == "launch":
            raise RuntimeError("no")

    rig = Rig(slots=1, fail=fail)
    listeners = [rig.say(tag, frames=20) for tag in range(5)]
    rig.ticks(20)
    assert [listener.ends for listener in listeners] == [["error"]] * 5
    assert not rig.loop.status().ready


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_failing_callback_ends_its_own_request_only(fails_at: int) -> None:
    rig = Rig()
    broken, other = rig.say(1, frames=30, fails_at=fails_at), rig.say(2, frames=30)
    rig.run()
    assert broken.ends == ["error"] and len(broken.chunks) == fails_at + 2
    assert other.ends == ["stop"] and len(other.frames) == 30
    rig.check_idle()


# --- memory, queue, stop ---


def test_a_request_without_free_memory_waits_and_is_not_overtaken() -> None:
    rig = Rig(slots=4, positions=100)
    rig.say(1, frames=20, max_new_tokens=80)
    large, small = rig.say(2, frames=20, max_new_tokens=90), rig.say(3, frames=5, max_new_tokens=10)
    rig.ticks(10)
    assert rig.loop.status().slots_active == 1
    rig.run()
    assert large.ends == small.ends == ["stop"] and large.arrived_s[0] <= small.arrived_s[0]


def test_a_request_that_can_never_fit_is_refused() -> None:
    rig = Rig(positions=100)
    never, other = rig.say(1, frames=20, max_new_tokens=101), rig.say(2, frames=20, max_new_tokens=50)
    rig.run()
    assert never.ends == ["error"] and isinstance(never.chunks[-1].error, TooLongError)
    assert other.ends == ["stop"]


def test_a_full_queue_refuses_with_a_retry_time() -> None:
    rig = Rig(slots=2, config=dataclasses.replace(PLAIN, queue_limit=3))
    accepted = [rig.say(tag, frames=40) for tag in range(5)]
    with pytest.raises(OverloadedError) as refused:
        rig.say(6, frames=40)
    assert refused.value.retry_after_s > 0
    rig.run()
    assert [listener.ends for listener in accepted] == [["stop"]] * 5
    rig.say(7, frames=4)


def test_streaming_texts_without_a_word_do_not_fill_the_queue() -> None:
    rig = Rig(slots=1, config=dataclasses.replace(PLAIN, queue_limit=0, max_pending_texts=2))
    for tag in (1, 2):
        rig.loop.submit(session_of(tag, 4, Listener(rig.runner.clock), streaming_text=True))
    with pytest.raises(OverloadedError):
        rig.loop.submit(session_of(3, 4, Listener(rig.runner.clock), streaming_text=True))
    worded = rig.say(4, frames=5)
    rig.run()
    assert worded.ends == ["stop"]


def test_stopping_lets_speech_finish_until_the_deadline() -> None:
    rig = Rig(slots=1)
    short, long = rig.say(1, frames=10), rig.say(2, frames=300, max_new_tokens=500)
    rig.loop.post(Shutdown(deadline_s=0.3))
    with pytest.raises(EngineError, match="stopping"):
        rig.say(3, frames=5)
    rig.run()
    assert short.ends == ["stop"] and long.ends == ["cancelled"] and 0 < len(long.frames) < 300
    assert rig.loop.finished
    rig.check_idle()


# --- counts ---


def test_underruns_are_counted() -> None:
    rig = Rig(fixed_s=0.1)  # more than a frame
    listeners = [rig.say(tag, frames=6) for tag in (1, 2)]
    rig.run()
    assert [len(listener.chunks) for listener in listeners] == [7, 7] and listeners[0].underrun_s() > 0.1
    assert rig.loop.status().underruns == 2 * 5
    rig.runner.fixed_s = 0.005
    steady = rig.say(3, frames=30)
    rig.ticks(30)
    assert rig.runner.held[0].frame == 30, "what is launched next ends it"
    rig.runner.fixed_s = 5.0
    rig.run()
    assert steady.ends == ["stop"] and steady.chunks[-1].pcm, "sound that was held meanwhile comes late"
    assert rig.loop.status().underruns == 2 * 5 + 1


def test_waiting_for_text_is_no_underrun() -> None:
    rig = Rig()
    listener = Listener(rig.runner.clock)
    rig.loop.submit(session_of(1, 0, listener, streaming_text=True))
    rig.loop.post(PromptReady("1", prompt_of(trailing=[11, 12]), text_ids=3, text_ended=False))
    for number in range(4):
        rig.run()
        rig.runner.clock.now_s += 5.0
        rig.ticks(1)
        rig.loop.post(TextAppended("1", (13, END_MARK)[: 1 + number // 3], 1, ended=number == 3))
    rig.run()
    assert listener.ends == ["stop"] and listener.underrun_s() > 10
    assert rig.loop.status().underruns == 0


def test_the_status_has_the_tick_histogram_and_the_counts_of_the_runner() -> None:
    rig = Rig(fixed_s=0.02, row_s=0.0, prefill_row_s=0.0)
    assert rig.loop.status().ticks == TickHistogram() and rig.loop.status().memory_bytes == 0
    listeners = [rig.say(tag, frames=5) for tag in (1, 2, 3)]
    rig.ticks(2)
    status = rig.loop.status()
    assert (status.prefix_hits, status.prefix_misses, status.prefix_bytes, status.memory_bytes) == (2, 1, 7, 300)
    rig.run()
    status, ticks = rig.loop.status(), len(rig.runner.launches)
    assert sum(status.ticks.counts) == ticks and status.ticks.sum_s == pytest.approx(0.02 * ticks)
    assert status.memory_bytes == 0 and [listener.chunks[-1].usage for listener in listeners] == [Usage(10, 5)] * 3


# --- slots ---


def test_a_slot_has_one_owner_at_a_time() -> None:
    slots, taken, rng = Slots(5), set[int](), random.Random(1)
    for _ in range(500):
        if slots.free and (not taken or rng.random() < 0.5):
            slot = slots.acquire()
            assert slot not in taken and slot == min(set(range(5)) - taken)
            taken.add(slot)
        else:
            slots.release(slot := rng.choice(sorted(taken)))
            taken.remove(slot)
        assert (slots.taken, slots.free) == (len(taken), 5 - len(taken))


def test_misuse_is_an_assertion_error() -> None:
    slots = Slots(1)
    with pytest.raises(AssertionError):
        slots.release(0)
    slots.acquire()
    with pytest.raises(AssertionError):
        slots.acquire()
    with pytest.raises(AssertionError):
        slots.release(1)
