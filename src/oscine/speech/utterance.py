"""One utterance of a SpeechEngine, for a coroutine."""

from __future__ import annotations

import asyncio
import secrets
from types import TracebackType
from typing import Self

from oscine.errors import EngineError
from oscine.request import SpeechRequest
from oscine.types import AppendText, AudioChunk, Cancel, EndText, SpeechEngine

_STOPPED = "the engine was stopped before the utterance was complete; send the request again"


class Utterance:
    """Submits a request and receives its chunks. Leaving the `async with` block early cancels it."""

    def __init__(self, engine: SpeechEngine, request: SpeechRequest, *, streaming_text: bool = False) -> None:
        self._engine, self._request, self._streaming_text = engine, request, streaming_text
        self._id = secrets.token_hex(8)
        self._chunks: asyncio.Queue[AudioChunk] = asyncio.Queue()
        self.ended = self._cancelled = False

    async def __aenter__(self) -> Self:
        """Raises what the engine's `submit` raises."""
        loop = asyncio.get_running_loop()

        def deliver(chunk: AudioChunk) -> None:
            try:
                loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                if not loop.is_closed():
                    raise
                self.cancel()

        await self._engine.submit(self._id, self._request, deliver, streaming_text=self._streaming_text)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.ended:
            self.cancel()

    async def next(self) -> AudioChunk:
        """The next chunk; the last one has a finish_reason. Errors of the engine are raised."""
        chunk = await self._chunks.get()
        self.ended = chunk.finish_reason is not None
        if chunk.error is not None:
            raise chunk.error
        if chunk.finish_reason == "cancelled" and not self._cancelled:
            raise EngineError(_STOPPED)
        return chunk

    def append(self, text: str) -> None:
        """Raises RequestError for text that cannot be spoken."""
        self._engine.send(self._id, AppendText(text))

    def end_text(self) -> None:
        """No more text follows."""
        self._engine.send(self._id, EndText())

    def cancel(self) -> None:
        """Ends the utterance without its last chunks."""
        self._cancelled = True
        self._engine.send(self._id, Cancel())
