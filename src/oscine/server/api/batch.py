"""POST /v1/audio/speech/batch: many speech requests in one body, each with its own result."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from oscine.errors import FieldError, OscineError, clear_tracebacks
from oscine.process.resources import TOO_MUCH_HELD, Holding
from oscine.server.api.renderers import missing_times, usage_fields, verbose_words
from oscine.server.http.api_keys import Charge
from oscine.server.http.errors import api_error, invalid_field
from oscine.server.http.json_body import JsonRoute
from oscine.server.http.key_usage import QUOTA_USED
from oscine.server.http.logs import request_id
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse, write_with_audio
from oscine.server.schemas import ALIASES, BatchBody, BatchItem, listed_fields
from oscine.server.service import Service
from oscine.server.speech_record import SpeechRecord
from oscine.speech.events import Audio, SpeechEvent, WholeFile
from oscine.speech.plan import SpeechPlan

# A refused item is retried until no item of the batch has made progress for this long.
RETRY_S = 40.0
MAX_RETRY_WAIT_S = 2.0


class BatchResult(BaseModel):
    index: int
    status: str
    audio_data: str | None = None
    media_type: str | None = None
    finish_reason: str | None = None
    seed: int | None = None
    ignored_fields: tuple[str, ...] | None = None
    usage: dict[str, int] | None = None
    words: list[dict[str, Any]] | None = None
    warning: str | None = None
    error: dict[str, Any] | None = None  # written as null too: vLLM-Omni's clients read it from every result
    audio: SkipJsonSchema[bytes | None] = Field(
        default=None, exclude=True
    )  # becomes audio_data when the result is written

    @classmethod
    def of(cls, index: int, plan: SpeechPlan, file: WholeFile, *, words: bool) -> BatchResult:
        return cls(
            index=index,
            status="success",
            media_type=plan.format.media_type,
            finish_reason=file.end.finish_reason,
            seed=plan.seed,
            ignored_fields=plan.ignored_fields or None,
            usage=usage_fields(file.end.usage),
            words=verbose_words(file.words) if words else None,
            warning="; ".join(filter(None, (*plan.client_warnings, missing_times(file.words)))) or None,
            audio=file.data,
        )


class BatchResponse(BaseModel):
    id: str
    results: list[BatchResult]
    total: int
    succeeded: int
    failed: int


def batch_routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["speech"], route_class=JsonRoute)

    @router.post("/v1/audio/speech/batch", response_model=BatchResponse, responses=errors, summary="Speak many texts")
    async def batch(body: BatchBody, request: Request) -> Response:
        async def produce(writer: ResponseWriter) -> None:
            try:
                with contextlib.closing(_SpeechBatch(service, body, request.state.api_key)) as batch:
                    response = await batch.run()
                    ignored = listed_fields({field.path for field in body.unknown_fields()})
                    headers = {"x-ignored-fields": ", ".join(ignored)} if ignored else {}
                    await writer.start({"content-type": "application/json", **headers})
                    await _write(writer, response)
            except ConnectionError:
                raise
            except Exception as exception:
                error = api_error(exception)  # logs an unexpected one
                if not writer.started:
                    service.metrics.refused(request.url.path, error.status)
                raise error from None

        return StreamingSpeechResponse(produce, service.config.stalled_s)

    return router


async def _write(writer: ResponseWriter, response: BatchResponse) -> None:
    """Writes in pieces: hours of audio as one JSON document would hold the event loop."""
    about = response.model_dump_json(exclude={"results"})
    await writer.write(f'{about[:-1]},"results":['.encode())
    for number, result in enumerate(response.results):
        absent = {name for name, value in result if value is None and name != "error"}
        fields = ("," if number else "") + result.model_dump_json(exclude=absent)
        if result.audio is None:
            await writer.write(fields.encode())
            continue
        await write_with_audio(writer, fields, "audio_data", result.audio)
    await writer.write(b"]}", more=False)


class _SpeechBatch:
    """Runs as many items at once as the API key and the engine admit; the others wait for them."""

    def __init__(self, service: Service, body: BatchBody, key: str) -> None:
        self._service, self._body, self._items, self._key = service, body, body.items, key
        self._collected: list[Holding] = []  # of the items that were spoken
        self._defaults = body.model_dump(exclude_unset=True, exclude={"items"})
        self._own_stream_free = True
        self._item_ended = asyncio.Condition()
        self._progress_s = 0.0  # when an item last received audio

    def close(self) -> None:
        """Stops counting the collected bytes, when the response was sent or its client has left."""
        for collected in self._collected:
            collected.close()

    async def run(self) -> BatchResponse:
        self._service.check_ready()
        max_items = self._service.config.max_batch_items
        if len(self._items) > max_items:
            message = f"the batch has {len(self._items)} items, the limit is {max_items}; split it"
            raise FieldError(message, param="items")
        if self._service.config.strict:
            self._body.check_strict()
        self._progress_s = time.monotonic()
        # One stream is held to the end, so that draining waits for the whole batch.
        with self._service.api_keys.stream(self._key):
            results = await asyncio.gather(*(self._run_item(index, item) for index, item in enumerate(self._items)))
        total, succeeded = len(results), sum(result.status == "success" for result in results)
        return BatchResponse(
            id=f"speech-batch-{request_id.get()}",
            results=results,
            total=total,
            succeeded=succeeded,
            failed=total - succeeded,
        )

    async def _run_item(self, index: int, item: Any) -> BatchResult:
        charge = Charge(self._service.api_keys, self._key)
        record = SpeechRecord(self._service.metrics, "batch", charge, whole=True)
        try:
            with record:
                return await self._speak_with_retries(index, self._validated(item), record)
        except Exception as exception:
            clear_tracebacks(exception)
            assert record.error
            return BatchResult(index=index, status="error", error=record.error.body)
        finally:
            async with self._item_ended:
                self._item_ended.notify()

    def _validated(self, item: Any) -> BatchItem:
        if not isinstance(item, dict):
            raise FieldError("the item is not a JSON object; give one with the fields of a single request")
        item = {name: value for name, value in item.items() if value is not None or name == "input"}  # null inherits
        defaults = self._defaults
        for alias, name in ALIASES.items():
            if alias in item or name in item:  # an item with both would be refused
                defaults = {field: value for field, value in defaults.items() if field not in (alias, name)}
        try:
            return BatchItem.model_validate({**defaults, **item})
        except ValidationError as error:
            raise invalid_field(list(error.errors())) from None

    async def _speak_with_retries(self, index: int, item: BatchItem, record: SpeechRecord) -> BatchResult:
        while True:
            try:
                async with self._service.batch_items:
                    with self._stream(record.charge):
                        if not record.charge.is_counted:
                            record.charge.add(item.chars)
                        return await self._speak(index, item, record)
            except OscineError as exception:
                error = api_error(exception)
                # Audio that batches hold stays until they are sent: nothing to wait for.
                passes = error.status == 429 and error.code not in (TOO_MUCH_HELD, QUOTA_USED)
                if not passes or time.monotonic() - self._progress_s > RETRY_S:
                    raise
                clear_tracebacks(exception)
            # Until an item of this batch ends, or the time to retry has come.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(error.retry_after_s or 60.0, MAX_RETRY_WAIT_S)), self._item_ended:
                    await self._item_ended.wait()

    @contextlib.contextmanager
    def _stream(self, charge: Charge) -> Iterator[None]:
        """The stream that the batch holds or, while it is in use, another one of the key. Raises 429."""
        if not self._own_stream_free:
            with charge.stream():
                yield
            return
        self._own_stream_free = False
        try:
            yield
        finally:
            self._own_stream_free = True

    async def _speak(self, index: int, item: BatchItem, record: SpeechRecord) -> BatchResult:
        model = self._service.route(item, item.input)
        record.use(model.metrics)
        file, collected = WholeFile(), self._service.ledger["audio"].open()

        async def render(plan: SpeechPlan, event: SpeechEvent) -> None:
            self._progress_s = time.monotonic()
            if isinstance(event, Audio):
                collected.add(plan.file_bytes(event.pcm))
            file.add(event)

        with contextlib.ExitStack() as on_error, model.streams:
            on_error.callback(collected.close)
            plan = record.plan = await self._service.plan(model, item, item.input)
            events = self._service.speak(plan, whole=True, words=bool(item.word_timestamps))
            await record.render(events, partial(render, plan))
            on_error.pop_all()
        self._collected.append(collected)
        return BatchResult.of(index, plan, file, words=bool(item.word_timestamps))
