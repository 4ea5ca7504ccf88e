from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from oscine.errors import EngineError
from oscine.types import AppendText, AudioChunk, Cancel, ClipData, Command, EndText, EngineStatus, SpeechRequest
from oscine.utterance import Utterance, stream_utterance, synthesize
from oscine.voice import Voice


class Announcer:
    """An engine that answers each piece of text with a chunk, and ends with the text."""

    def __init__(self, error: EngineError | None = None) -> None:
        self.error, self.told = error, list[Command]()
        self.deliver: Callable[[AudioChunk], None] = lambda chunk: None

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        self.deliver = deliver
        deliver(AudioChunk(request.text.encode(), 0))
        if not streaming_text:
            self.end()
        return "only"

    def end(self) -> None:
        self.deliver(AudioChunk(b"", 0, "error" if self.error else "stop", self.error))

    def tell(self, utterance_id: str, command: Command) -> None:
        assert utterance_id == "only"
        self.told.append(command)
        if isinstance(command, AppendText):
            self.deliver(AudioChunk(command.text.encode(), 0))
        elif isinstance(command, EndText):
            self.end()

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        raise NotImplementedError

    def status(self) -> EngineStatus:
        raise NotImplementedError

    def stop(self, drain_s: float = 0.0) -> None:
        raise NotImplementedError


async def pieces(*texts: str) -> AsyncIterator[str]:
    for text in texts:
        yield text
        await asyncio.sleep(0)


async def received(engine: Announcer, text: AsyncIterator[str] | None = None) -> list[bytes]:
    return [chunk.pcm async for chunk in stream_utterance(engine, SpeechRequest(text="one"), text)]


def test_chunks_reach_asyncio_in_order() -> None:
    engine = Announcer()
    assert asyncio.run(received(engine)) == [b"one", b""] and engine.told == []


def test_text_is_sent_while_audio_arrives() -> None:
    engine = Announcer()
    assert asyncio.run(received(engine, pieces("two", "three"))) == [b"one", b"two", b"three", b""]
    assert engine.told == [AppendText("two"), AppendText("three"), EndText()]


def test_leaving_a_stream_early_cancels_the_utterance() -> None:
    engine = Announcer()

    async def leave() -> None:
        chunks = stream_utterance(engine, SpeechRequest(text="one"), pieces("two"))
        assert (await anext(chunks)).pcm == b"one"
        await chunks.aclose()

    asyncio.run(leave())
    assert engine.told[-1] == Cancel()


def test_a_cancelled_task_cancels_its_utterance() -> None:
    engine = Announcer()

    async def endless() -> AsyncIterator[str]:
        await asyncio.sleep(60)
        yield "never"

    async def interrupt() -> None:
        task = asyncio.create_task(received(engine, endless()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    assert engine.told == [Cancel()]


def test_an_error_of_the_utterance_is_raised() -> None:
    with pytest.raises(EngineError, match="gone"):
        asyncio.run(received(Announcer(EngineError("gone"))))
    with pytest.raises(EngineError, match="gone"):
        synthesize(Announcer(EngineError("gone")), SpeechRequest(text="one"))


def test_an_error_in_the_text_is_raised_and_cancels() -> None:
    engine = Announcer()

    async def broken() -> AsyncIterator[str]:
        yield "two"
        raise RuntimeError("the language model is gone")

    with pytest.raises(RuntimeError, match="language model"):
        asyncio.run(received(engine, broken()))
    assert engine.told[-1] == Cancel()


def test_synthesize_returns_the_whole_audio() -> None:
    assert synthesize(Announcer(), SpeechRequest(text="one")) == b"one"


def test_synthesize_never_returns_partial_audio() -> None:
    class Stopped(Announcer):
        def end(self) -> None:
            self.deliver(AudioChunk(b"", 0, "cancelled"))

    with pytest.raises(EngineError, match="stopped before the utterance was complete"):
        synthesize(Stopped(), SpeechRequest(text="one"))


def test_audio_for_a_closed_event_loop_is_dropped_and_cancels() -> None:
    engine = Announcer()
    asyncio.run(Utterance(engine, SpeechRequest(text="one"), streaming_text=True).__aenter__())
    engine.deliver(AudioChunk(b"two", 0))
    assert engine.told == [Cancel()]
