"""The loop by hand: each test drives `turn` over a ScriptedRunner in virtual time."""

from __future__ import annotations

import dataclasses

import pytest
from tests.engine.scripted import END_MARK, PLAIN, Listener, ScriptedRunner, prompt_of, session_of

from oscine.config import EngineConfig, RunawayConfig
from oscine.engine.admission import EndSession, PromptReady, Shutdown, TextAppended
from oscine.engine.loop import EngineLoop
from oscine.types import EngineError, OverloadedError, RequestError, TickHistogram, TooLongError, Usage


class Bench:
    def __init__(self, slots: int = 4, config: EngineConfig = PLAIN, **runner: object) -> None:
        self.runner = ScriptedRunner(slots, **runner)  # type: ignore[arg-type]
        self.config = config
        self.loop = EngineLoop(self.runner, config, self.runner.clock)

    def say(self, tag: int, frames: int, fails_at: int | None = None, **options: object) -> Listener:
        listener = Listener(self.runner.clock, fails_at)
        self.loop.submit(session_of(tag, frames, listener, self.config, **options))  # type: ignore[arg-type]
        return listener

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.loop.tick()

    def run(self, most: int = 10_000) -> None:
        """Until there is nothing to do."""
        for _ in range(most):
            if not self.loop.tick():
                return
        raise AssertionError("it never comes to rest")

    def check_rest(self) -> None:
        assert not self.runner.held and not self.runner.flying
        status = self.loop.status()
        assert (status.slots_active, status.queued) == (0, 0)


def test_every_frame_is_heard_once_and_in_order() -> None:
    bench = Bench()
    listeners = [bench.say(tag, frames=5 + tag) for tag in range(1, 4)]
    bench.run()
    for tag, listener in enumerate(listeners, start=1):
        assert listener.ends == ["stop"]
        assert [(who, frame) for who, frame, _ in listener.frames] == [(tag, frame) for frame in range(5 + tag)]
    bench.check_rest()
    assert bench.loop.status().frames >= 6 + 7 + 8


def test_a_frame_is_launched_before_the_last_one_is_read() -> None:
    bench = Bench()
    bench.say(1, frames=3)
    bench.turns(2)
    assert len(bench.runner.launches) == 2 and len(bench.runner.flying) == 1
    bench.run()
    # Frames 0, 1, 2, the end of speech, and the one that was under way when the end was read.
    assert len(bench.runner.launches) == 5


def test_speech_without_a_frame_ends_as_well() -> None:
    bench = Bench()
    listener = bench.say(1, frames=0)
    bench.run()
    assert (listener.pcm, listener.ends) == (b"", ["stop"])
    bench.check_rest()


@pytest.mark.parametrize(("asked", "frames", "reason"), [(5, 100, "length"), (5, 4, "stop"), (2, 100, "length")])
def test_max_new_tokens_counts_draws_not_frames(asked: int, frames: int, reason: str) -> None:
    bench = Bench()
    listener = bench.say(1, frames=frames, max_new_tokens=asked)
    bench.run()
    assert len(listener.frames) == asked - 1 and listener.ends == [reason]


def test_a_text_without_a_limit_of_its_own_has_a_budget() -> None:
    guard = RunawayConfig(budget_frames=12, budget_frames_per_text_id=8.0)
    bench = Bench(config=dataclasses.replace(PLAIN, runaway=guard))
    listener = bench.say(1, frames=900, text_ids=2)
    bench.run()
    assert len(listener.frames) == 28 and listener.ends == ["runaway"]
    asked = bench.say(2, frames=900, text_ids=2, max_new_tokens=101)
    bench.run()
    assert len(asked.frames) == 100 and asked.ends == ["length"]


def test_a_cancelled_slot_is_used_again_within_one_frame() -> None:
    bench = Bench(slots=1)
    first, second = bench.say(1, frames=100), bench.say(2, frames=3)
    bench.turns(6)
    bench.loop.post(EndSession("1"))
    launches = len(bench.runner.launches)
    bench.turns(1)
    assert first.ends == ["cancelled"]
    assert len(bench.runner.launches) == launches + 1 and bench.runner.held[0].tag == 2
    bench.run()
    assert {who for who, _, _ in first.frames} == {1}
    assert [frame for who, frame, _ in second.frames] == [0, 1, 2] and {who for who, _, _ in second.frames} == {2}
    bench.check_rest()


def test_a_waiting_request_can_be_cancelled() -> None:
    bench = Bench(slots=1)
    bench.say(1, frames=5)
    waiting = bench.say(2, frames=5)
    bench.turns(2)
    bench.loop.post(EndSession("2"))
    bench.loop.post(EndSession("never was"))
    bench.run()
    assert (waiting.pcm, waiting.ends) == (b"", ["cancelled"])
    bench.check_rest()


# --- open text ---


def test_a_stream_without_text_pauses_and_blocks_nobody() -> None:
    bench = Bench()
    listener = Listener(bench.runner.clock)
    bench.loop.submit(session_of(1, 4, listener, streaming_text=True))
    other = bench.say(2, frames=30)
    bench.turns(3)
    assert bench.loop.status().slots_active == 1, "no slot before the first word"
    bench.loop.post(PromptReady("1", prompt_of(trailing=[11, 12]), text_ids=3, text_ended=False))
    bench.run()
    assert other.ends == ["stop"]
    assert [text for _, _, text in listener.frames] == [11, 12], "all that could be said has been heard"
    bench.loop.post(TextAppended("1", (13,), 1, ended=False))
    bench.run()
    bench.loop.post(TextAppended("1", (14, END_MARK), 1, ended=True))
    bench.run()
    assert listener.ends == ["stop"]
    assert [text for _, _, text in listener.frames] == [11, 12, 13, 14, END_MARK]
    bench.check_rest()


def test_text_that_comes_while_waiting_for_a_slot_is_kept() -> None:
    bench = Bench(slots=1)
    bench.say(1, frames=5)
    listener = Listener(bench.runner.clock)
    bench.loop.submit(session_of(2, 6, listener, streaming_text=True))
    bench.loop.post(PromptReady("2", prompt_of(trailing=[11]), text_ids=2, text_ended=False))
    bench.turns(2)
    bench.loop.post(TextAppended("2", (12, 13), 2, ended=False))
    bench.loop.post(TextAppended("2", (END_MARK,), 0, ended=True))
    bench.run()
    assert [text for _, _, text in listener.frames] == [11, 12, 13, END_MARK, 0, 0]
    assert listener.ends == ["stop"]


def test_a_text_that_never_comes_is_ended() -> None:
    bench = Bench()
    wordless, stuck = Listener(bench.runner.clock), Listener(bench.runner.clock)
    bench.loop.submit(session_of(1, 4, wordless, streaming_text=True))
    bench.loop.submit(session_of(2, 4, stuck, streaming_text=True))
    bench.loop.post(PromptReady("2", prompt_of(trailing=[11]), text_ids=2, text_ended=False))
    bench.run()
    bench.runner.clock.now_s += PLAIN.text_wait_s + 1
    bench.run()
    assert wordless.ends == stuck.ends == ["error"] and isinstance(stuck.chunks[-1].error, RequestError)
    assert len(stuck.frames) == 1
    bench.check_rest()


# --- failures ---


@pytest.mark.parametrize("stage", ["admit", "append"])
def test_a_failure_that_has_an_owner_harms_nobody_else(stage: str) -> None:
    def fail(at: str, tag: int) -> None:
        if at == stage and tag == 2:
            raise RuntimeError("poisoned")

    bench = Bench(fail=fail)
    others = [bench.say(1, frames=20), bench.say(3, frames=20)]
    poisoned = Listener(bench.runner.clock)
    bench.loop.submit(session_of(2, 6, poisoned, streaming_text=True))
    bench.loop.post(PromptReady("2", prompt_of(trailing=[11]), text_ids=2, text_ended=False))
    bench.turns(4)
    bench.loop.post(TextAppended("2", (12,), 1, ended=False))
    bench.run()
    assert poisoned.ends == ["error"] and "poisoned" in str(poisoned.chunks[-1].error)
    assert [listener.ends for listener in others] == [["stop"]] * 2
    assert [len(listener.frames) for listener in others] == [20, 20]
    bench.check_rest()


@pytest.mark.parametrize("stage", ["launch", "collect"])
def test_a_runner_that_fails_once_ends_what_runs_and_goes_on(stage: str) -> None:
    broken = [True]

    def fail(at: str, tag: int) -> None:
        if at == stage and tag == 1 and broken:
            broken.clear()
            raise RuntimeError("a bad moment")

    bench = Bench(slots=2, fail=fail)
    running = [bench.say(1, frames=20), bench.say(2, frames=20)]
    waiting = bench.say(3, frames=20)
    bench.run()
    assert [listener.ends for listener in running] in ([["error"], ["error"]], [["error"], ["stop"]])
    assert isinstance(running[0].chunks[-1].error, EngineError)
    assert waiting.ends == ["stop"] and len(waiting.frames) == 20
    assert bench.loop.status().ready
    bench.check_rest()


@pytest.mark.parametrize("stage", ["launch", "collect", "admit"])
def test_a_runner_that_is_gone_takes_the_engine_with_it(stage: str) -> None:
    def fail(at: str, tag: int) -> None:
        if at == stage:
            raise EngineError("the device does not answer")

    bench = Bench(slots=1, fail=fail)
    listeners = [bench.say(1, frames=20), bench.say(2, frames=20)]
    bench.turns(10)
    assert [listener.ends for listener in listeners] == [["error"]] * 2
    assert not bench.loop.status().ready and bench.loop.finished
    with pytest.raises(EngineError, match="failed and stopped"):
        bench.say(3, frames=5)


def test_a_runner_that_never_works_is_given_up() -> None:
    def fail(at: str, tag: int) -> None:
        if at == "launch":
            raise RuntimeError("no")

    bench = Bench(slots=1, fail=fail)
    listeners = [bench.say(tag, frames=20) for tag in range(5)]
    bench.turns(20)
    assert [listener.ends for listener in listeners] == [["error"]] * 5
    assert not bench.loop.status().ready


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_broken_listener_ends_its_own_request_only(fails_at: int) -> None:
    bench = Bench()
    broken, other = bench.say(1, frames=30, fails_at=fails_at), bench.say(2, frames=30)
    bench.run()
    assert broken.ends == ["error"] and len(broken.chunks) == fails_at + 2
    assert other.ends == ["stop"] and len(other.frames) == 30
    bench.check_rest()


# --- memory, queue, stop ---


def test_who_needs_more_memory_than_is_free_waits_and_is_not_overtaken() -> None:
    bench = Bench(slots=4, positions=100)
    bench.say(1, frames=20, max_new_tokens=80)
    large, small = bench.say(2, frames=20, max_new_tokens=90), bench.say(3, frames=5, max_new_tokens=10)
    bench.turns(10)
    assert bench.loop.status().slots_active == 1
    bench.run()
    assert large.ends == small.ends == ["stop"] and large.heard_s[0] <= small.heard_s[0]


def test_who_can_never_fit_is_told() -> None:
    bench = Bench(positions=100)
    never, other = bench.say(1, frames=20, max_new_tokens=101), bench.say(2, frames=20, max_new_tokens=50)
    bench.run()
    assert never.ends == ["error"] and isinstance(never.chunks[-1].error, TooLongError)
    assert other.ends == ["stop"]


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    bench = Bench(slots=2, config=dataclasses.replace(PLAIN, queue_limit=3))
    accepted = [bench.say(tag, frames=40) for tag in range(5)]
    with pytest.raises(OverloadedError) as refused:
        bench.say(6, frames=40)
    assert refused.value.retry_after_s > 0
    bench.run()
    assert [listener.ends for listener in accepted] == [["stop"]] * 5
    bench.say(7, frames=4)


def test_streaming_texts_without_a_word_do_not_fill_the_queue() -> None:
    bench = Bench(slots=1, config=dataclasses.replace(PLAIN, queue_limit=0, max_pending_texts=2))
    for tag in (1, 2):
        bench.loop.submit(session_of(tag, 4, Listener(bench.runner.clock), streaming_text=True))
    with pytest.raises(OverloadedError):
        bench.loop.submit(session_of(3, 4, Listener(bench.runner.clock), streaming_text=True))
    worded = bench.say(4, frames=5)
    bench.run()
    assert worded.ends == ["stop"]


def test_stopping_lets_speech_finish_for_a_while() -> None:
    bench = Bench(slots=1)
    short, long = bench.say(1, frames=10), bench.say(2, frames=300, max_new_tokens=500)
    bench.loop.post(Shutdown(deadline_s=0.3))
    with pytest.raises(EngineError, match="stopping"):
        bench.say(3, frames=5)
    bench.run()
    assert short.ends == ["stop"] and long.ends == ["cancelled"] and 0 < len(long.frames) < 300
    assert bench.loop.finished
    bench.check_rest()


# --- what is counted ---


def test_underruns_are_counted_where_they_are_heard() -> None:
    bench = Bench(fixed_s=0.1)  # more than a frame
    listeners = [bench.say(tag, frames=6) for tag in (1, 2)]
    bench.run()
    assert [len(listener.chunks) for listener in listeners] == [7, 7] and listeners[0].underrun_s() > 0.1
    assert bench.loop.status().underruns == 2 * 5
    bench.runner.fixed_s = 0.005
    steady = bench.say(3, frames=30)
    bench.turns(30)
    assert bench.runner.held[0].frame == 30, "what is launched next ends it"
    bench.runner.fixed_s = 5.0
    bench.run()
    assert steady.ends == ["stop"] and steady.chunks[-1].pcm, "sound that was held meanwhile comes late"
    assert bench.loop.status().underruns == 2 * 5 + 1


def test_a_listener_that_waits_for_text_does_not_count_as_an_underrun() -> None:
    bench = Bench()
    listener = Listener(bench.runner.clock)
    bench.loop.submit(session_of(1, 0, listener, streaming_text=True))
    bench.loop.post(PromptReady("1", prompt_of(trailing=[11, 12]), text_ids=3, text_ended=False))
    for number in range(4):
        bench.run()
        bench.runner.clock.now_s += 5.0
        bench.turns(1)
        bench.loop.post(TextAppended("1", (13, END_MARK)[: 1 + number // 3], 1, ended=number == 3))
    bench.run()
    assert listener.ends == ["stop"] and listener.underrun_s() > 10
    assert bench.loop.status().underruns == 0


def test_the_status_tells_ticks_and_what_the_runner_counts() -> None:
    bench = Bench(fixed_s=0.02, row_s=0.0, prefill_row_s=0.0)
    assert bench.loop.status().ticks == TickHistogram() and bench.loop.status().memory_bytes == 0
    listeners = [bench.say(tag, frames=5) for tag in (1, 2, 3)]
    bench.turns(2)
    status = bench.loop.status()
    assert (status.prefix_hits, status.prefix_misses, status.prefix_bytes, status.memory_bytes) == (2, 1, 7, 300)
    bench.run()
    status, ticks = bench.loop.status(), len(bench.runner.launches)
    assert sum(status.ticks.counts) == ticks and status.ticks.sum_s == pytest.approx(0.02 * ticks)
    assert status.memory_bytes == 0 and [listener.chunks[-1].usage for listener in listeners] == [Usage(10, 5)] * 3
