"""Clients of a SpeechEngine: `synthesize` blocks, `stream_utterance` is async, `Utterance` gives full control."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from concurrent.futures import Executor
from types import TracebackType
from typing import Self

from oscine.errors import EngineError
from oscine.types import AppendText, AudioChunk, Cancel, EndText, SpeechEngine, SpeechRequest, SubmitAsync

_STOPPED = "the engine was stopped before the utterance was complete; send the request again"


def synthesize(engine: SpeechEngine, request: SpeechRequest) -> bytes:
    """The whole utterance as PCM16. Raises the error that ended it, also when the engine was stopped."""
    chunks: queue.SimpleQueue[AudioChunk] = queue.SimpleQueue()
    utterance_id = engine.submit(request, chunks.put)
    pcm: list[bytes] = []
    try:
        while True:
            chunk = chunks.get()
            pcm.append(chunk.pcm)
            if chunk.error is not None:
                raise chunk.error
            if chunk.finish_reason == "cancelled":
                raise EngineError(_STOPPED)
            if chunk.finish_reason is not None:
                return b"".join(pcm)
    except BaseException:
        engine.tell(utterance_id, Cancel())  # after an interrupt; a no-op if the utterance has ended
        raise


async def stream_utterance(
    engine: SpeechEngine, request: SpeechRequest, text: AsyncIterable[str] | None = None
) -> AsyncGenerator[AudioChunk, None]:
    """Chunks as they arrive; the last one has a finish_reason, errors are raised. With `text`, the request's own text
    is only the beginning. Closing the generator, cancellation or an error in `text` cancels the utterance."""
    async with Utterance(engine, request, streaming_text=text is not None) as utterance:
        appending = asyncio.create_task(_append_all(utterance, text)) if text is not None else None
        try:
            while not utterance.ended:
                yield await utterance.next()
        finally:
            if appending is not None:
                appending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await appending


async def _append_all(utterance: Utterance, text: AsyncIterable[str]) -> None:
    try:
        async for piece in text:
            utterance.append(piece)
        utterance.end_text()
    except Exception as error:
        utterance.interrupt(error)


class _LoopDelivery:
    """Hands chunks to the event loop."""

    never_blocks = True  # so an engine client needs no other thread to call it

    def __init__(
        self, loop: asyncio.AbstractEventLoop, put: Callable[[AudioChunk], None], cancel: Callable[[], None]
    ) -> None:
        self._loop, self._put, self._cancel = loop, put, cancel

    def __call__(self, chunk: AudioChunk) -> None:
        try:
            self._loop.call_soon_threadsafe(self._put, chunk)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._cancel()


class Utterance:
    """One utterance of an engine, for a coroutine. Leaving the `async with` block early cancels it.

    An engine without `submit_async` is asked on a thread of `pool` (None: the event loop's own), because `submit` waits
    for the engine's answer.
    """

    def __init__(
        self,
        engine: SpeechEngine,
        request: SpeechRequest,
        pool: Executor | None = None,
        *,
        streaming_text: bool = False,
    ) -> None:
        self._engine, self._request, self._pool, self._streaming_text = engine, request, pool, streaming_text
        self._chunks: asyncio.Queue[AudioChunk | Exception] = asyncio.Queue()
        self._utterance_id = ""
        self.ended = self._cancelled = False

    async def __aenter__(self) -> Self:
        """Raises what the engine's `submit` raises."""
        loop = asyncio.get_running_loop()
        deliver = _LoopDelivery(loop, self._chunks.put_nowait, self.cancel)
        submit_async: SubmitAsync | None = getattr(self._engine, "submit_async", None)
        if submit_async:
            self._utterance_id = await submit_async(self._request, deliver, streaming_text=self._streaming_text)
        else:
            await self._submit_on_thread(loop, deliver)
        return self

    async def _submit_on_thread(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[AudioChunk], None]) -> None:
        def submit() -> str:
            # Set on this thread: if the event loop closes meanwhile, nothing below runs any more.
            self._utterance_id = self._engine.submit(self._request, deliver, streaming_text=self._streaming_text)
            return self._utterance_id

        submitting = loop.run_in_executor(self._pool, submit)
        try:
            await asyncio.shield(submitting)
        except asyncio.CancelledError:
            # The client left while the engine was being asked: cancel the utterance if it is still accepted.
            submitting.add_done_callback(self._cancel_accepted)
            raise

    def _cancel_accepted(self, submitted: asyncio.Future[str]) -> None:
        if not submitted.cancelled() and submitted.exception() is None:
            self._engine.tell(submitted.result(), Cancel())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.ended:
            self.cancel()

    async def next(self) -> AudioChunk:
        """The next chunk; the last one has a finish_reason. Errors of the engine are raised."""
        chunk = await self._chunks.get()
        if isinstance(chunk, Exception):
            raise chunk
        self.ended = chunk.finish_reason is not None
        if chunk.error is not None:
            raise chunk.error
        if chunk.finish_reason == "cancelled" and not self._cancelled:
            raise EngineError(_STOPPED)
        return chunk

    def interrupt(self, error: Exception) -> None:
        """`next` raises this error after the chunks that arrived before it."""
        self._chunks.put_nowait(error)

    def append(self, text: str) -> None:
        """Raises RequestError for text that cannot be spoken."""
        self._engine.tell(self._utterance_id, AppendText(text))

    def end_text(self) -> None:
        """No more text follows."""
        self._engine.tell(self._utterance_id, EndText())

    def cancel(self) -> None:
        """Ends the utterance without its last chunks."""
        self._cancelled = True
        self._engine.tell(self._utterance_id, Cancel())
