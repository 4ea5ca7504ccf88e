"""A `deliver` callback for tests, and ways to wait for it.

Tests wait for events, never for a time, so a busy machine does not change results.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from oscine.errors import OscineError
from oscine.request import SpeechRequest
from oscine.types import AudioChunk, Deliver

WAIT_S = 600.0  # only a failing test waits this long


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never became true"
        time.sleep(0.002)


def submit(engine: Any, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False) -> str:
    """Submits to an engine of any kind, without an event loop. Returns the utterance's id."""
    utterance_id = secrets.token_hex(8)
    if hasattr(engine, "enqueue"):
        engine.enqueue(utterance_id, request, deliver, streaming_text=streaming_text)
    else:
        asyncio.run(engine.submit(utterance_id, request, deliver, streaming_text=streaming_text))
    return utterance_id


class ChunkRecorder:
    """Records the chunks of one utterance; asserts that they join and that none follows the end.

    `before_chunk` runs before each chunk; tests use it to slow the callback down.
    """

    def __init__(self, before_chunk: Callable[[], object] = lambda: None) -> None:
        self.chunks: list[AudioChunk] = []
        self.ended = threading.Event()
        self._before_chunk = before_chunk

    def __call__(self, chunk: AudioChunk) -> None:
        self._before_chunk()
        assert not self.ended.is_set(), "a chunk after the end"
        assert chunk.first_sample == len(self.pcm) // 2, "a gap or an overlap"
        self.chunks.append(chunk)
        if chunk.finish_reason is not None:
            self.ended.set()

    def wait(self) -> list[str]:
        """Waits for the end. Returns the finish reasons, which should be one."""
        assert self.ended.wait(WAIT_S), f"no end after {len(self.chunks)} chunks"
        return self.ends

    def last(self) -> AudioChunk:
        """Waits for the last chunk."""
        self.wait()
        return self.chunks[-1]

    @property
    def ends(self) -> list[str]:
        return [chunk.finish_reason for chunk in self.chunks if chunk.finish_reason is not None]

    @property
    def error(self) -> OscineError | None:
        return self.chunks[-1].error if self.chunks else None

    @property
    def pcm(self) -> bytes:
        return b"".join(chunk.pcm for chunk in self.chunks)

    @property
    def samples(self) -> np.ndarray:
        return np.frombuffer(self.pcm, np.int16).astype(int)


def speak_whole(engine: Any, request: SpeechRequest) -> bytes:
    """The whole utterance as PCM16. Raises the error that ended it."""
    recorder = ChunkRecorder()
    submit(engine, request, recorder)
    if (error := recorder.last().error) is not None:
        raise error
    return recorder.pcm
