"""Continuations: the next segment of an admitted speech goes first, whatever the load."""

from __future__ import annotations

import dataclasses

import pytest

from oscine.engine.admission import PromptReady, Shutdown
from oscine.errors import EngineError, OverloadedError
from oscine.types import AudioChunk
from tests.engine.scripted_runner import PLAIN, Listener, prompt_of, session_of
from tests.engine.test_loop import Rig


def test_continuations_are_never_refused_and_go_first() -> None:
    rig = Rig(slots=1, config=dataclasses.replace(PLAIN, queue_limit=2))
    running = rig.say(1, frames=30)
    rig.ticks(3)
    new = [rig.say(tag, frames=5) for tag in (2, 3)]
    with pytest.raises(OverloadedError):
        rig.say(4, frames=5)
    continuing = [rig.say(tag, frames=5, continues=True, plays_until_s=9.0) for tag in (5, 6, 7)]
    assert rig.loop.status().queued == 5
    rig.run()
    order = sorted([running, *new, *continuing], key=lambda listener: listener.arrived_s[0])
    assert [listener.frames[0][0] for listener in order] == [1, 5, 6, 7, 2, 3]
    assert [listener.ends for listener in order] == [["stop"]] * 6
    rig.check_idle()


def test_continuations_count_as_load_for_new_requests() -> None:
    rig = Rig(slots=1, config=dataclasses.replace(PLAIN, queue_limit=2))
    rig.say(1, frames=30)
    rig.ticks(3)
    for tag in (2, 3):
        rig.say(tag, frames=5, continues=True)
    with pytest.raises(OverloadedError, match="2 requests queued"):
        rig.say(4, frames=5)
    rig.run()
    assert rig.say(4, frames=5) and rig.loop.status().queued == 1


def test_a_streaming_continuation_goes_first_when_its_text_arrives() -> None:
    rig = Rig(slots=1, config=dataclasses.replace(PLAIN, max_pending_texts=0))
    rig.say(1, frames=5)
    opened = Listener(rig.runner.clock)
    rig.loop.submit(session_of(2, 4, opened, streaming_text=True, continues=True))
    with pytest.raises(OverloadedError):
        rig.loop.submit(session_of(3, 4, Listener(rig.runner.clock), streaming_text=True))
    waiting = rig.say(4, frames=5)
    rig.ticks(2)
    rig.loop.post(PromptReady("2", prompt_of(), text_ids=2, text_ended=True))
    rig.run()
    assert opened.ends == waiting.ends == ["stop"] and opened.arrived_s[0] < waiting.arrived_s[0]


def test_a_continuation_may_be_submitted_in_the_callback_of_the_last_chunk() -> None:
    rig = Rig(slots=1)
    second = Listener(rig.runner.clock)

    def deliver(chunk: AudioChunk) -> None:
        if chunk.finish_reason is not None:
            rig.loop.submit(session_of(2, 5, second, continues=True, plays_until_s=rig.runner.clock.now_s + 0.1))

    rig.loop.submit(session_of(1, 5, deliver))
    new = rig.say(3, frames=5)
    rig.run()
    assert second.ends == new.ends == ["stop"] and second.arrived_s[-1] < new.arrived_s[0]
    assert rig.loop.status().underruns == 0


def test_a_stopping_engine_refuses_continuations_too() -> None:
    rig = Rig()
    rig.loop.post(Shutdown(deadline_s=0.3))
    with pytest.raises(EngineError, match="stopping"):
        rig.say(1, frames=5, continues=True)
