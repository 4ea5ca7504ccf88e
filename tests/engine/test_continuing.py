"""The next part of a speech whose listener was let in already: before everyone else, whatever the load."""

from __future__ import annotations

import dataclasses

import pytest
from tests.engine.scripted import PLAIN, Listener, prompt_of, session_of
from tests.engine.test_loop import Bench

from oscine.engine.admission import PromptReady, Shutdown
from oscine.types import AudioChunk, EngineError, OverloadedError


def test_who_continues_is_never_refused_and_goes_first() -> None:
    bench = Bench(slots=1, config=dataclasses.replace(PLAIN, queue_limit=2))
    running = bench.say(1, frames=30)
    bench.turns(3)
    newcomers = [bench.say(tag, frames=5) for tag in (2, 3)]
    with pytest.raises(OverloadedError):
        bench.say(4, frames=5)
    continuing = [bench.say(tag, frames=5, continues=True, plays_until_s=9.0) for tag in (5, 6, 7)]
    assert bench.loop.status().queued == 5
    bench.run()
    order = sorted([running, *newcomers, *continuing], key=lambda listener: listener.heard_s[0])
    assert [listener.frames[0][0] for listener in order] == [1, 5, 6, 7, 2, 3]
    assert [listener.ends for listener in order] == [["stop"]] * 6
    bench.check_rest()


def test_who_continues_counts_as_load_for_others() -> None:
    bench = Bench(slots=1, config=dataclasses.replace(PLAIN, queue_limit=2))
    bench.say(1, frames=30)
    bench.turns(3)
    for tag in (2, 3):
        bench.say(tag, frames=5, continues=True)
    with pytest.raises(OverloadedError, match="2 requests are queued"):
        bench.say(4, frames=5)
    bench.run()
    assert bench.say(4, frames=5) and bench.loop.status().queued == 1


def test_an_open_text_that_continues_goes_first_when_its_words_come() -> None:
    bench = Bench(slots=1, config=dataclasses.replace(PLAIN, max_pending_texts=0))
    bench.say(1, frames=5)
    opened = Listener(bench.runner.clock)
    bench.loop.submit(session_of(2, 4, opened, streaming_text=True, continues=True))
    with pytest.raises(OverloadedError):
        bench.loop.submit(session_of(3, 4, Listener(bench.runner.clock), streaming_text=True))
    waiting = bench.say(4, frames=5)
    bench.turns(2)
    bench.loop.post(PromptReady("2", prompt_of(), text_ids=2, text_ended=True))
    bench.run()
    assert opened.ends == waiting.ends == ["stop"] and opened.heard_s[0] < waiting.heard_s[0]


def test_who_continues_may_be_asked_for_while_the_last_chunk_is_taken() -> None:
    bench = Bench(slots=1)
    second = Listener(bench.runner.clock)

    def deliver(chunk: AudioChunk) -> None:
        if chunk.finish_reason is not None:
            bench.loop.submit(session_of(2, 5, second, continues=True, plays_until_s=bench.runner.clock.now_s + 0.1))

    bench.loop.submit(session_of(1, 5, deliver))
    newcomer = bench.say(3, frames=5)
    bench.run()
    assert second.ends == newcomer.ends == ["stop"] and second.heard_s[-1] < newcomer.heard_s[0]
    assert bench.loop.status().underruns == 0


def test_a_closed_engine_refuses_also_who_continues() -> None:
    bench = Bench()
    bench.loop.post(Shutdown(deadline_s=0.3))
    with pytest.raises(EngineError, match="stopping"):
        bench.say(1, frames=5, continues=True)
