"""Listeners of an engine in this process: one with a player's clock, and a company of others who speak meanwhile."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

from oscine.types import AudioChunk, Cancel, OverloadedError, SpeechEngine, SpeechRequest


class Listener:
    """Plays from the first chunk on, and notes how late the worst sample came."""

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self.submitted_s = time.perf_counter()
        self.first_s: float | None = None  # when the first sound came
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
        """From submission to the first sound."""
        return None if self.first_s is None else (self.first_s - self.submitted_s) * 1e3


class Company:
    """So many streams that speak, each again when it has ended, for as long as the `with` lasts."""

    def __init__(self, engine: SpeechEngine, request: SpeechRequest, count: int) -> None:
        self._engine, self._request, self._count = engine, request, count
        self._news = threading.Condition()
        self._ids: dict[int, str] = {}  # place -> utterance that is spoken there
        self._heard: set[int] = set()
        self._broken = self._leaving = False

    def __enter__(self) -> Self:
        try:
            for place in range(self._count):
                with self._news:
                    self._speak(place)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def gathers(self) -> bool:
        """Waits until all of them have been heard. False: the engine would not let so many speak at once."""
        with self._news:
            self._news.wait_for(lambda: self._broken or len(self._heard) == self._count)
            return not self._broken

    def _speak(self, place: int) -> None:
        def deliver(chunk: AudioChunk) -> None:
            with self._news:
                if chunk.pcm:
                    self._heard.add(place)
                if chunk.finish_reason is not None:
                    del self._ids[place]
                    # Who has said all that he may before another has begun held a place that was not there for both.
                    full = chunk.finish_reason == "length" and len(self._heard) < self._count
                    self._broken |= full or chunk.finish_reason == "error"
                    if not self._leaving and not self._broken:
                        self._speak(place)
                self._news.notify_all()

        try:
            self._ids[place] = self._engine.submit(replace(self._request, seed=place), deliver)
        except OverloadedError:
            self._broken = True

    def _leave(self) -> None:
        with self._news:
            self._leaving = True
            spoken = list(self._ids.values())
        for utterance_id in spoken:
            self._engine.tell(utterance_id, Cancel())
        with self._news:
            self._news.wait_for(lambda: not self._ids)
