"""How recent speeches ended, for GET /v1/audio/speech/{request_id}: a stream of bytes sends its headers before it knows
its length, its usage and whether it will fail. No audio is kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from oscine.errors import NotFoundError
from oscine.server.http.errors import ErrorDetail
from oscine.types import FinishReason

_MAX_OUTCOMES = 1000  # of all keys; an outcome has less than a kilobyte


class SpeechOutcome(BaseModel):
    """How a speech ended. SGLang-Omni's clients read the first three fields."""

    request_id: str = Field(description="The x-request-id of the speech.")
    finish_reason: FinishReason | None = Field(description="None: it was refused before any audio.")
    usage: dict[str, int] | None = Field(description="None unless it was spoken to its end.")
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
