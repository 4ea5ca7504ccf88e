"""POST /v1/audio/speech/batch: many requests in one body, each with its own answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from oscine.narration import NarrationChunk
from oscine.server.errors import ApiError, api_error
from oscine.server.json_body import JsonRoute
from oscine.server.logs import request_id
from oscine.server.metrics import SpeechMeter
from oscine.server.schemas import BatchBody, BatchItem, invalid_field
from oscine.server.service import Service
from oscine.server.speech import usage_facts, whole_file
from oscine.server.speech_plan import plan_speech
from oscine.server.streaming_response import Out, StreamingSpeechResponse
from oscine.types import OverloadedError

# Of an item that is refused for load, since any item of its batch made sound: they may be what it waits for.
_PATIENCE_S = 40.0
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
    router = APIRouter(tags=["speech"], route_class=JsonRoute)

    @router.post("/v1/audio/speech/batch", response_model=BatchAnswer, responses=errors, summary="Speak many texts")
    async def batch(body: BatchBody, request: Request) -> Response:
        key: str = request.state.api_key

        async def make(out: Out) -> None:
            try:
                answer = await _Batch(service, body, key).speak()
            except ApiError as error:
                service.metrics.refused(request.url.path, error.status)
                raise
            await out.start({"content-type": "application/json"})
            await out.write(answer.model_dump_json(exclude_none=True).encode(), more=False)

        return StreamingSpeechResponse(make, service.config.stalled_s)

    return router


class _Batch:
    """As many items are spoken at once as the key and the engine let in; the others wait for these."""

    def __init__(self, service: Service, body: BatchBody, key: str) -> None:
        self._service, self._items, self._key = service, body.items, key
        self._defaults = body.model_dump(exclude_unset=True, exclude={"items"})
        self._own_stream_free = True
        self._item_ended = asyncio.Condition()
        self._heard_s = 0.0  # when an item of this batch was last given sound

    async def speak(self) -> BatchAnswer:
        self._service.check_open()
        most = self._service.config.max_batch_items
        if len(self._items) > most:
            message = f"the batch has {len(self._items)} items, the limit is {most}; send it in parts"
            raise ApiError(413, message, param="items")
        self._heard_s = time.monotonic()
        # Held to the end, also where no item runs just now: who drains waits for the whole batch.
        with self._service.access.stream(self._key):
            results = await asyncio.gather(*(self._speak(index, item) for index, item in enumerate(self._items)))
        total, succeeded = len(results), sum(result.status == "success" for result in results)
        return BatchAnswer(
            id=request_id.get(), results=results, total=total, succeeded=succeeded, failed=total - succeeded
        )

    async def _speak(self, index: int, item: Any) -> BatchResult:
        meter = SpeechMeter(self._service.metrics, "batch", self._service.card.sample_rate_hz)
        try:
            return await self._speak_patiently(index, self._checked(item), meter)
        except asyncio.CancelledError:
            meter.ended(499, "cancelled")
            raise
        except Exception as error:
            told = api_error(error)
            meter.ended(told.status, None)
            return BatchResult(index=index, status="error", error=told.body)
        finally:
            async with self._item_ended:
                self._item_ended.notify()

    def _checked(self, item: Any) -> BatchItem:
        if not isinstance(item, dict):
            raise ApiError(422, "this item is no JSON object; give one with its input, as a single request has it")
        defaults = self._defaults
        if "speaker" in item:  # its other name would be taken for a second voice
            defaults = {name: value for name, value in defaults.items() if name != "voice"}
        try:
            return BatchItem.model_validate({**defaults, **item})
        except ValidationError as error:
            raise invalid_field(list(error.errors())) from None

    async def _speak_patiently(self, index: int, item: BatchItem, meter: SpeechMeter) -> BatchResult:
        while True:
            try:
                with self._stream():
                    return await self._speak_once(index, item, meter)
            except (OverloadedError, ApiError) as error:
                told = api_error(error)
                if told.status != 429 or time.monotonic() - self._heard_s > _PATIENCE_S:
                    raise
                await self._turn(told.retry_after_s or _LONGEST_WAIT_S)

    @contextlib.contextmanager
    def _stream(self) -> Iterator[None]:
        """One of the key's streams: the batch's own, or where that is in use, another one. Raises 429."""
        if not self._own_stream_free:
            with self._service.access.stream(self._key):
                yield
            return
        self._own_stream_free = False
        try:
            yield
        finally:
            self._own_stream_free = True

    async def _turn(self, retry_after_s: float) -> None:
        """Until another try is worth it: an item of this batch has ended, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(retry_after_s, _LONGEST_WAIT_S)), self._item_ended:
                await self._item_ended.wait()

    async def _speak_once(self, index: int, item: BatchItem, meter: SpeechMeter) -> BatchResult:
        plan = await plan_speech(item, item.input, self._service)
        async with contextlib.aclosing(self._service.narrate(plan)) as sounds:
            data, samples, last = await whole_file(self._service, plan, self._listen(sounds))
        meter.sent_whole(samples)
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

    async def _listen(self, sounds: AsyncIterable[NarrationChunk]) -> AsyncIterator[NarrationChunk]:
        async for sound in sounds:
            self._heard_s = time.monotonic()
            yield sound
