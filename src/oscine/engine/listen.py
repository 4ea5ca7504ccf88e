"""Two ways to listen to any SpeechEngine: `speak` waits for the whole, `listen` gives chunks to asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncGenerator, AsyncIterable

from oscine.types import AppendText, AudioChunk, Cancel, EndText, SpeechEngine, SpeechRequest


def speak(engine: SpeechEngine, request: SpeechRequest) -> bytes:
    """The whole utterance as PCM16. Raises what ended it, if that was an error."""
    chunks: queue.SimpleQueue[AudioChunk] = queue.SimpleQueue()
    utterance_id = engine.submit(request, chunks.put)
    pcm: list[bytes] = []
    try:
        while True:
            chunk = chunks.get()
            pcm.append(chunk.pcm)
            if chunk.error is not None:
                raise chunk.error
            if chunk.finish_reason is not None:
                return b"".join(pcm)
    except BaseException:
        engine.tell(utterance_id, Cancel())  # an interrupt; of what has ended already it is no news
        raise


async def listen(
    engine: SpeechEngine, request: SpeechRequest, text: AsyncIterable[str] | None = None
) -> AsyncGenerator[AudioChunk, None]:
    """Chunks as they come; the last one carries its finish_reason, an error is raised. With `text`, the request's own
    text is only the beginning. Leaving early (aclose, cancellation, an exception in `text`) cancels the utterance."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[AudioChunk | BaseException] = asyncio.Queue()
    # Where the event loop is closed this raises, and the engine ends the utterance.
    utterance_id = engine.submit(request, lambda chunk: _put(loop, chunks, chunk), text_open=text is not None)
    feeding = asyncio.create_task(_feed(engine, utterance_id, text, chunks)) if text is not None else None
    ended = False
    try:
        while not ended:
            chunk = await chunks.get()
            if isinstance(chunk, BaseException):
                raise chunk
            ended = chunk.finish_reason is not None
            if chunk.error is not None:
                raise chunk.error
            yield chunk
    finally:
        if not ended:
            engine.tell(utterance_id, Cancel())
        if feeding is not None:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feeding


def _put(loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[AudioChunk | BaseException], chunk: AudioChunk) -> None:
    loop.call_soon_threadsafe(chunks.put_nowait, chunk)


async def _feed(
    engine: SpeechEngine,
    utterance_id: str,
    text: AsyncIterable[str],
    chunks: asyncio.Queue[AudioChunk | BaseException],
) -> None:
    try:
        async for piece in text:
            engine.tell(utterance_id, AppendText(piece))
        engine.tell(utterance_id, EndText())
    except Exception as error:
        chunks.put_nowait(error)
