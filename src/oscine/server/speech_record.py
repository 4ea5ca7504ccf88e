"""Metrics of one served speech, from the request to its end, and its line in the log."""

from __future__ import annotations

import asyncio
import time

import numpy as np
from starlette.websockets import WebSocketDisconnect

from oscine.audio.pcm import first_audible
from oscine.server.http.api_keys import Charge
from oscine.server.http.errors import ApiError, api_error
from oscine.server.http.metrics import AUDIBLE_DBFS, Metrics, ModelMetrics
from oscine.speech.events import Audio, Ended
from oscine.speech.plan import SpeechPlan
from oscine.speech.run import SpeechRun


class SpeechRecord(SpeechRun):
    """Counts a speech. A subclass logs its end."""

    def __init__(self, metrics: Metrics, mode: str, charge: Charge, *, whole: bool = False) -> None:
        """`mode`: http, sse, batch or websocket. `charge` is to the client's key. A `whole` file counts when it was
        sent, and has no time to first audio."""
        self._metrics, self._mode, self.charge, self._whole = metrics, mode, charge, whole
        self._model: ModelMetrics | None = None
        self._start_s = self._sent_s = time.monotonic()  # the request; the last audio
        self._whole_samples = 0
        self._audible = False
        self._samples = 0  # of the engine
        self.plan: SpeechPlan | None = None  # set before any audio is counted
        self.first_audio_s: float | None = None
        self.error: ApiError | None = None  # why it failed

    def use(self, model: ModelMetrics) -> None:
        """The model was chosen; called before any audio is counted."""
        self._model = model

    @property
    def audio_s(self) -> float:
        """Seconds of audio that were sent."""
        return self.plan.playback_s(self._samples) if self.plan else 0.0

    @property
    def first_audio_ms(self) -> float | None:
        return None if self.first_audio_s is None else round(1000 * self.first_audio_s, 1)

    @property
    def has_begun(self) -> bool:
        """Whether the client was sent anything; an error before that is a refusal, not the end of a speech."""
        return False

    def log(self, status: int, end: Ended | None) -> None:
        """Called once, when the end has been counted."""

    def sent(self, audio: Audio) -> None:
        if self._whole:
            self._whole_samples += len(audio.pcm) // 2
        elif audio.pcm:
            self._time(audio.pcm)
            self._count(len(audio.pcm) // 2)

    def ended(self, end: Ended | None, error: BaseException | None) -> None:
        status = 200
        if isinstance(error, asyncio.CancelledError | ConnectionError | WebSocketDisconnect):
            status, end = 499, Ended("cancelled")
        elif error is not None:
            self.error = api_error(error)  # logs an unexpected one
            self.charge.refuse(error)
            status, end = self.error.status, Ended("error") if self.has_begun else None
        elif self._whole:
            self._sent_s = time.monotonic()
            self._count(self._whole_samples)
        self.charge.settle(self.audio_s, failed=self.error is not None and not self.has_begun)
        model = self._model
        self._metrics.requests.labels(model.name if model else "", str(status), self._mode).inc()
        if model and end:
            self._metrics.finished.labels(model.name, end.finish_reason).inc()
            if end.finish_reason == "cancelled":
                model.cancelled.inc()
            elif end.finish_reason != "error":
                model.e2e_s.observe(self._sent_s - self._start_s)
        self.log(status, end)

    def _time(self, pcm: bytes) -> None:
        assert self._model and self.plan
        self._sent_s = time.monotonic()
        elapsed_s = self._sent_s - self._start_s
        if self.first_audio_s is None:
            self.first_audio_s = elapsed_s
            self._model.ttfa_s.observe(elapsed_s)
        if self._audible:
            return
        audible = first_audible(np.frombuffer(pcm, "<i2"), AUDIBLE_DBFS)
        if audible is not None:
            self._audible = True
            # A player that started with the first sample reaches this one after all audio sent before it.
            onset_s = self.first_audio_s + self.plan.playback_s(self._samples + audible)
            self._model.audible_ttfa_s.observe(max(elapsed_s, onset_s))

    def _count(self, samples: int) -> None:
        assert self._model and self.plan
        self._samples += samples
        self._model.audio_s.inc(self.plan.playback_s(samples))
