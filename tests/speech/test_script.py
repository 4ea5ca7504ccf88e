from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from oscine.errors import EngineError, OverloadedError
from oscine.request import SpeechRequest
from oscine.speech.script import Utterance
from oscine.types import AppendText, Cancel, Command, Deliver, EndText, FinishReason
from tests.manual_engine import ManualEngine

REQUEST = SpeechRequest(text="one")


class Announcer(ManualEngine):
    """Answers each piece of text with a chunk, and ends with the text."""

    def __init__(self, failure: EngineError | None = None, *, reason: FinishReason = "stop") -> None:
        super().__init__()
        self.failure, self.reason = failure, "error" if failure else reason

    @property
    def told(self) -> list[Command]:
        assert {utterance_id for utterance_id, _ in self.commands} <= set(self.utterances)
        return [command for _, command in self.commands]

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        await super().submit(utterance_id, request, deliver)
        self.speak(utterance_id, request.text.encode())
        if not streaming_text:
            self.end(utterance_id, self.reason, self.failure)

    def send(self, utterance_id: str, command: Command) -> None:
        super().send(utterance_id, command)
        if isinstance(command, AppendText):
            self.speak(utterance_id, command.text.encode())
        elif isinstance(command, EndText):
            self.end(utterance_id, self.reason, self.failure)


def received(
    engine: Announcer, *later: str, act: Callable[[Utterance], object] = lambda utterance: None
) -> list[bytes]:
    """All chunks of an utterance whose text arrives in pieces, if there are `later` ones."""

    async def receive() -> list[bytes]:
        async with Utterance(engine, REQUEST, streaming_text=bool(later)) as utterance:
            for text in later:
                utterance.append(text)
            if later:
                utterance.end_text()
            act(utterance)
            pieces = []
            while not utterance.ended:
                pieces.append((await utterance.next()).pcm)
            return pieces

    return asyncio.run(receive())


def test_chunks_reach_asyncio_in_order() -> None:
    engine = Announcer()
    assert received(engine) == [b"one", b""] and engine.told == []


def test_text_is_sent_while_audio_arrives() -> None:
    engine = Announcer()
    assert received(engine, "two", "three") == [b"one", b"two", b"three", b""]
    assert engine.told == [AppendText("two"), AppendText("three"), EndText()]


def test_leaving_early_cancels_the_utterance() -> None:
    engine = Announcer()

    async def leave() -> None:
        async with Utterance(engine, REQUEST, streaming_text=True) as utterance:
            assert (await utterance.next()).pcm == b"one"

    asyncio.run(leave())
    assert engine.told == [Cancel()]


def test_a_cancelled_task_cancels_its_utterance() -> None:
    engine = Announcer()

    async def wait_for_more() -> None:
        async with Utterance(engine, REQUEST, streaming_text=True) as utterance:
            while True:
                await utterance.next()

    async def interrupt() -> None:
        task = asyncio.create_task(wait_for_more())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    assert engine.told == [Cancel()]


def test_an_error_of_the_utterance_is_raised() -> None:
    with pytest.raises(EngineError, match="gone"):
        received(Announcer(EngineError("gone")))


def test_a_refusal_is_raised_and_cancels_nothing() -> None:
    engine = Announcer()
    engine.error = OverloadedError("full", 1.0)
    with pytest.raises(OverloadedError):
        received(engine)
    assert engine.told == []


def test_an_engine_that_was_stopped_is_an_error_and_an_own_cancel_is_none() -> None:
    with pytest.raises(EngineError, match="stopped before the utterance was complete"):
        received(Announcer(reason="cancelled"))
    assert received(Announcer(reason="cancelled"), act=Utterance.cancel) == [b"one", b""]


def test_audio_for_a_closed_event_loop_is_dropped_and_cancels() -> None:
    engine = Announcer()
    asyncio.run(Utterance(engine, REQUEST, streaming_text=True).__aenter__())
    engine.speak(engine.utterances[0], b"two")
    assert engine.told == [Cancel()]
