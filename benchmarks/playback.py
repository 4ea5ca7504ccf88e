"""Listeners of an engine in this process: a player's clock, and background streams that keep the engine busy."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

from oscine.engine.in_process import InProcessEngine
from oscine.errors import OverloadedError
from oscine.request import SpeechRequest
from oscine.types import AudioChunk, Cancel, Deliver, SpeechEngine


def submit(engine: SpeechEngine, request: SpeechRequest, deliver: Deliver) -> str:
    """Submits a request from a thread without an event loop. Returns the utterance's id."""
    utterance_id = secrets.token_hex(8)
    if isinstance(engine, InProcessEngine):
        engine.enqueue(utterance_id, request, deliver)
    else:
        asyncio.run(engine.submit(utterance_id, request, deliver))
    return utterance_id


class PlaybackClock:
    """A player that starts with the first chunk; records how late the latest sample arrived."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self.submitted_s = time.perf_counter()
        self.first_s: float | None = None  # arrival of the first audio
        self.samples = 0
        self.worst_deficit_s = 0.0
        self.ended = threading.Event()

    def deliver(self, chunk: AudioChunk) -> None:
        now_s = time.perf_counter()
        if chunk.pcm:
            if self.first_s is None:
                self.first_s = now_s
            played_s = now_s - self.first_s
            self.worst_deficit_s = max(self.worst_deficit_s, played_s - self.samples / self._rate_hz)
            self.samples += len(chunk.pcm) // 2
        if chunk.finish_reason is not None:
            self.ended.set()

    @property
    def first_audio_ms(self) -> float | None:
        """The time from submission to the first audio."""
        return None if self.first_s is None else (self.first_s - self.submitted_s) * 1e3


class BackgroundStreams:
    """A fixed number of running streams; each restarts when it ends, until the `with` block is left."""

    def __init__(self, engine: SpeechEngine, request: SpeechRequest, count: int) -> None:
        self._engine, self._request, self._count = engine, request, count
        self._changed = threading.Condition()
        self._ids: dict[int, str] = {}  # stream number -> id of its running utterance
        self._started: set[int] = set()  # streams that have delivered audio
        self._failed = self._leaving = False

    def __enter__(self) -> Self:
        try:
            for number in range(self._count):
                with self._changed:
                    self._start(number)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def all_running(self) -> bool:
        """Waits until every stream has delivered audio. False: the engine does not admit this many at once."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or len(self._started) == self._count)
            return not self._failed

    def _start(self, number: int) -> None:
        def deliver(chunk: AudioChunk) -> None:
            with self._changed:
                if chunk.pcm:
                    self._started.add(number)
                if chunk.finish_reason is not None:
                    del self._ids[number]
                    # A stream that reaches its full length before another has started: they did not run together.
                    alone = chunk.finish_reason == "length" and len(self._started) < self._count
                    self._failed |= alone or chunk.finish_reason == "error"
                    if not self._leaving and not self._failed:
                        self._start(number)
                self._changed.notify_all()

        try:
            self._ids[number] = submit(self._engine, replace(self._request, seed=number), deliver)
        except OverloadedError:
            self._failed = True

    def _leave(self) -> None:
        with self._changed:
            self._leaving = True
            running = list(self._ids.values())
        for utterance_id in running:
            self._engine.send(utterance_id, Cancel())
        with self._changed:
            self._changed.wait_for(lambda: not self._ids)
