"""Metrics of one served speech, from the request to its end, and its line in the log. And how recent speeches ended,
for GET /v1/audio/speech/{request_id}: a stream of bytes sends its headers before it knows its length, its usage and
whether it will fail. No audio is kept."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.websockets import WebSocketDisconnect

from oscine.audio.pcm import first_audible
from oscine.errors import NotFoundError
from oscine.server.http.api_keys import Charge
from oscine.server.http.errors import ApiError, ErrorDetail, api_error
from oscine.server.http.metrics import AUDIBLE_DBFS, Metrics, ModelMetrics
from oscine.speech.events import Audio, Ended
from oscine.speech.plan import SpeechPlan
from oscine.speech.run import SpeechRun
from oscine.types import FinishReason


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


_MAX_OUTCOMES = 1000  # of all keys; an outcome has less than a kilobyte


class SpeechOutcome(BaseModel):
    """How a speech ended. SGLang-Omni's clients read the first three fields."""

    request_id: str = Field(description="The x-request-id of the speech.")
    finish_reason: FinishReason | None = Field(description="Why it ended; null if it was refused before any audio.")
    usage: dict[str, int] | None = Field(description="Null unless it was spoken to its end.")
    object: Literal["audio.speech"] = "audio.speech"
    audio_seconds: float = Field(description="Seconds of audio that were sent.")
    seed: int | None
    error: ErrorDetail | None


class SpeechOutcomes:
    """The newest outcomes, by API key and request id: no key sees another key's."""

    def __init__(self, max_outcomes: int = _MAX_OUTCOMES) -> None:
        self._max_outcomes = max_outcomes
        self._outcomes: OrderedDict[tuple[str, str], SpeechOutcome] = OrderedDict()

    def add(self, key: str, outcome: SpeechOutcome) -> None:
        self._outcomes.pop((key, outcome.request_id), None)  # the client has used its id again
        self._outcomes[key, outcome.request_id] = outcome
        if len(self._outcomes) > self._max_outcomes:
            self._outcomes.popitem(last=False)

    def get(self, key: str, request_id: str) -> SpeechOutcome:
        """Returns how a speech ended. Raises NotFoundError."""
        if (found := self._outcomes.get((key, request_id))) is None:
            message = "no speech with this x-request-id has ended here lately; ask again when its response has ended"
            raise NotFoundError(f"{message} (the last {self._max_outcomes} are kept)", "request_id")
        return found


def outcome_routes(outcomes: SpeechOutcomes, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["speech"])
    described: dict[int | str, dict[str, Any]] = {status: errors[status] for status in (401, 404)}

    @router.get("/v1/audio/speech/{request_id:path}", summary="How a speech ended", responses=described)
    async def retrieve_speech(request: Request, request_id: str) -> SpeechOutcome:
        """The finish reason and the usage of a recent `POST /v1/audio/speech`, by its `x-request-id`. No audio."""
        return outcomes.get(request.state.api_key, request_id)

    return router
