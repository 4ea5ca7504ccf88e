"""POST /v1/audio/speech/batch: many requests in one body, each with its own answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from oscine.server.errors import ApiError, api_error
from oscine.server.logs import request_id
from oscine.server.metrics import SpeechMeter
from oscine.server.plan import plan_speech
from oscine.server.schemas import FIELDS, BatchBody, BatchItem, invalid_field
from oscine.server.sending import MadeWhileSent, Out
from oscine.server.service import Service
from oscine.server.speech import usage_facts, whole_file
from oscine.types import OverloadedError

_TRIES = 20  # of an item that is refused for load: the others of its batch may be what it waits for
_LONGEST_WAIT_S = 2.0


class BatchResult(BaseModel):
    index: int
    status: str
    audio_data: str | None = None
    media_type: str | None = None
    finish_reason: str | None = None
    seed: int | None = None
    usage: dict[str, int] | None = None
    error: dict[str, Any] | None = None


class BatchAnswer(BaseModel):
    id: str
    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


def batch_routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["speech"])

    @router.post("/v1/audio/speech/batch", response_model=BatchAnswer, responses=errors, summary="Speak many texts")
    async def batch(body: BatchBody, request: Request) -> Response:
        key: str = request.state.api_key

        async def make(out: Out) -> None:
            answer = await _speak_all(service, body, key)
            await out.start({"content-type": "application/json"})
            await out.write(answer.model_dump_json(exclude_none=True).encode(), more=False)

        return MadeWhileSent(make, service.config.stalled_s)

    return router


async def _speak_all(service: Service, body: BatchBody, key: str) -> BatchAnswer:
    service.check_open()
    most = service.config.batch_items_most
    if len(body.items) > most:
        message = f"the batch has {len(body.items)} items, the limit is {most}; send it in parts"
        raise ApiError(413, message, param="items")
    defaults = body.model_dump(exclude_unset=True, exclude={"items"})
    with service.access.stream(key):
        results = await asyncio.gather(
            *(_speak(service, index, {**defaults, **item}) for index, item in enumerate(body.items))
        )
    succeeded = sum(result.status == "success" for result in results)
    total = len(results)
    return BatchAnswer(id=request_id.get(), results=results, total=total, succeeded=succeeded, failed=total - succeeded)


async def _speak(service: Service, index: int, fields: dict[str, Any]) -> BatchResult:
    meter = SpeechMeter(service.metrics, "batch", service.card.sample_rate_hz)
    try:
        try:
            item = BatchItem.model_validate(fields)
        except ValidationError as error:
            raise invalid_field(list(error.errors()), FIELDS[BatchItem]) from None
        result = await _speak_patiently(service, index, item, meter)
    except asyncio.CancelledError:
        meter.ended(499, "cancelled")
        raise
    except Exception as error:
        told = api_error(error)
        meter.ended(told.status, None)
        return BatchResult(index=index, status="error", error=told.body)
    return result


async def _speak_patiently(service: Service, index: int, item: BatchItem, meter: SpeechMeter) -> BatchResult:
    for attempt in range(_TRIES):
        try:
            return await _speak_once(service, index, item, meter)
        except OverloadedError as error:
            if attempt == _TRIES - 1 or meter.samples:
                raise
            await asyncio.sleep(min(error.retry_after_s, _LONGEST_WAIT_S))
    raise AssertionError("unreachable")


async def _speak_once(service: Service, index: int, item: BatchItem, meter: SpeechMeter) -> BatchResult:
    plan = await plan_speech(item, item.input, service)
    async with contextlib.aclosing(service.narrate(plan)) as sounds:
        data, last = await whole_file(service, plan, sounds, meter)
    meter.ended(200, last.finish_reason)
    return BatchResult(
        index=index,
        status="success",
        audio_data=base64.b64encode(data).decode(),
        media_type=plan.format.media_type,
        finish_reason=last.finish_reason,
        seed=plan.seed,
        usage=usage_facts(last.usage),
    )
