"""How to listen to any SpeechEngine: `speak` waits for the whole, `listen` gives chunks to asyncio, and an `Utterance`
is what a coroutine holds while it lasts. Only `speak` blocks."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncGenerator, AsyncIterable
from concurrent.futures import Executor
from types import TracebackType
from typing import Self

from oscine.types import AppendText, AudioChunk, Cancel, EndText, EngineError, SpeechEngine, SpeechRequest


def speak(engine: SpeechEngine, request: SpeechRequest) -> bytes:
    """The whole utterance as PCM16. Raises what ended it early, be it an error or the engine's stop."""
    chunks: queue.SimpleQueue[AudioChunk] = queue.SimpleQueue()
    utterance_id = engine.submit(request, chunks.put)
    pcm: list[bytes] = []
    try:
        while True:
            chunk = chunks.get()
            pcm.append(chunk.pcm)
            if chunk.error is not None:
                raise chunk.error
            if chunk.finish_reason == "cancelled":  # not by this caller, who only waits
                raise EngineError("the engine was stopped before the utterance was whole; send the request again")
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
    async with Utterance(engine, request, streaming_text=text is not None) as utterance:
        feeding = asyncio.create_task(_feed(utterance, text)) if text is not None else None
        try:
            while not utterance.ended:
                yield await utterance.next()
        finally:
            if feeding is not None:
                feeding.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await feeding


async def _feed(utterance: Utterance, text: AsyncIterable[str]) -> None:
    try:
        async for piece in text:
            utterance.append(piece)
        utterance.end_text()
    except Exception as error:
        utterance.interrupt(error)


class Utterance:
    """One utterance of an engine, as a coroutine hears it. Leaving the `async with` early cancels it. The engine is
    asked on a thread of `pool` (None: the event loop's own), as its answer may take a while."""

    def __init__(
        self,
        engine: SpeechEngine,
        request: SpeechRequest,
        pool: Executor | None = None,
        *,
        streaming_text: bool = False,
    ) -> None:
        self._engine, self._request, self._pool, self._text_open = engine, request, pool, streaming_text
        self._chunks: asyncio.Queue[AudioChunk | Exception] = asyncio.Queue()
        self._utterance_id = ""
        self.ended = False

    async def __aenter__(self) -> Self:
        """Raises what the engine's `submit` raises."""
        loop = asyncio.get_running_loop()

        def deliver(chunk: AudioChunk) -> None:
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                self.cancel()  # nobody is left to hear it

        def submit() -> str:
            # Known at once: where the event loop is closed meanwhile, nothing below runs any more.
            self._utterance_id = self._engine.submit(self._request, deliver, streaming_text=self._text_open)
            return self._utterance_id

        submitting = loop.run_in_executor(self._pool, submit)
        try:
            await asyncio.shield(submitting)
        except asyncio.CancelledError:
            # The listener left while the engine was being asked: what it may still accept is cancelled at once.
            submitting.add_done_callback(self._cancel_accepted)
            raise
        return self

    def _cancel_accepted(self, submitted: asyncio.Future[str]) -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            self._engine.tell(submitted.result(), Cancel())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.ended:
            self.cancel()

    async def next(self) -> AudioChunk:
        """The next chunk; the last one has a finish_reason. An error of the engine is raised."""
        chunk = await self._chunks.get()
        if isinstance(chunk, Exception):
            raise chunk
        self.ended = chunk.finish_reason is not None
        if chunk.error is not None:
            raise chunk.error
        return chunk

    def interrupt(self, error: Exception) -> None:
        """`next` raises this when it has given all that came before."""
        self._chunks.put_nowait(error)

    def append(self, text: str) -> None:
        """Raises RequestError for a piece that cannot be spoken."""
        self._engine.tell(self._utterance_id, AppendText(text))

    def end_text(self) -> None:
        self._engine.tell(self._utterance_id, EndText())

    def cancel(self) -> None:
        self._engine.tell(self._utterance_id, Cancel())
