"""POST /v1/audio/speech: streams audio bytes or events, or returns the whole file; renderers.py has the forms.

POST /v1/audio/encode turns PCM into an audio file; the playground saves speech in any format with it.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from oscine.audio.encoders import FORMATS, AsyncEncoder, open_file_encoder
from oscine.errors import FieldError, RequestError
from oscine.server.api.renderers import RENDERERS, Call, Events, Renderer, response_form, usage_fields
from oscine.server.http.api_keys import Charge
from oscine.server.http.errors import ErrorDetail
from oscine.server.http.json_body import DirectJsonApp, JsonRoute
from oscine.server.http.logs import log_fields, request_id
from oscine.server.http.openapi import ERRORS
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse, write_whole
from oscine.server.schemas import SpeechBody
from oscine.server.service import Service
from oscine.server.speech_record import SpeechOutcome, SpeechRecord
from oscine.server.spellings import QueriedFormat, QueriedRate
from oscine.speech.events import Ended
from oscine.speech.plan import SpeechPlan

_log = logging.getLogger(__name__)

SPEECH_PATH = "/v1/audio/speech"

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_OK: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Audio in the requested format, streamed; or events; or the whole file.",
        "content": {
            **{form.media_type: _BINARY for form in FORMATS.values()},
            "text/event-stream": {"schema": {"type": "string"}},
            "application/json": {"schema": {"type": "object"}},
        },
    }
}


def speech_routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["speech"], route_class=JsonRoute)

    @router.post(SPEECH_PATH, response_class=Response, responses={**_OK, **errors}, summary="Speak a text")
    async def speech(body: SpeechBody, request: Request) -> Response:
        return _response(service, body, request)

    return router


def direct_speech(service: Service) -> DirectJsonApp[SpeechBody]:
    """The same endpoint without the router."""
    return DirectJsonApp(SpeechBody, partial(_response, service))


def _response(service: Service, body: SpeechBody, request: Request) -> Response:
    form = response_form(body, request.headers, service.config)
    handler = SpeechHandler(Call(body, service, request.state.api_key), RENDERERS[form])
    return StreamingSpeechResponse(handler.produce, service.config.stalled_s)


class SpeechHandler:
    """One request, from its body to the last byte of its response."""

    def __init__(self, call: Call, form: type[Renderer]) -> None:
        self._call, self._form = call, form

    async def produce(self, writer: ResponseWriter) -> None:
        call, body, service = self._call, self._call.body, self._call.service
        record = _HttpRecord(call, self._form, writer)
        renderer: Renderer | None = None
        try:
            with record:
                service.check_ready()
                with record.charge.stream():
                    record.charge.add(body.chars)
                    model = service.route(body, body.input)
                    record.use(model.metrics)
                    with model.streams:
                        plan = record.plan = await service.plan(model, body, body.input)
                        if body.word_timestamps and self._form.no_words:
                            raise FieldError(self._form.no_words, param="word_timestamps")
                        renderer = self._form(writer, plan, call)
                        events = service.speak(plan, whole=renderer.whole, words=bool(body.word_timestamps))
                        await record.render(events, renderer.render)
        except Exception:
            if record.error is None:  # the client is gone
                raise
            if renderer and writer.started:
                await renderer.fail(record.error)
            raise record.error from None
        finally:
            if renderer:
                renderer.close()


class _HttpRecord(SpeechRecord):
    """Also keeps the outcome for GET /v1/audio/speech/{request_id}."""

    def __init__(self, call: Call, form: type[Renderer], writer: ResponseWriter) -> None:
        mode, charge = "sse" if issubclass(form, Events) else "http", Charge(call.service.api_keys, call.key)
        super().__init__(call.service.metrics, mode, charge, whole=form.whole)
        self._call, self._writer = call, writer

    @property
    def has_begun(self) -> bool:
        return self._writer.started

    def log(self, status: int, end: Ended | None) -> None:
        plan = self.plan if status == 200 else None
        outcome = SpeechOutcome(
            request_id=request_id.get(),
            finish_reason=end.finish_reason if end else None,
            usage=_usage_of_all(end) if plan and end else None,
            audio_seconds=round(self.audio_s, 3),
            seed=plan.seed if plan else None,
            error=ErrorDetail(**self.error.body) if self.error else None,
        )
        self._call.service.outcomes.add(self._call.key, outcome)
        if plan and end:
            self._log_spoken(plan, end)
        elif error := self.error:
            _log.info("request failed", extra=log_fields(status=error.status, code=error.code, param=error.param))
        else:
            _log.info("client disconnected", extra=log_fields(audio_s=round(self.audio_s, 3)))

    def _log_spoken(self, plan: SpeechPlan, end: Ended) -> None:
        fields = log_fields(
            model=plan.model.name if self._call.service.models.several else None,
            finish_reason=end.finish_reason,
            chars=self._call.body.chars,
            segments=plan.segments,
            format=plan.format.name,
            audio_s=round(self.audio_s, 3),
            first_audio_ms=self.first_audio_ms,
            key=self._call.key or None,
        )
        _log.info("spoken", extra=fields)
        if plan.warning:
            _log.warning(plan.warning)


def _usage_of_all(end: Ended) -> dict[str, int]:
    """The usage with SGLang-Omni's names too."""
    usage = end.usage
    return {**usage_fields(usage), "prompt_tokens": usage.text_ids, "completion_tokens": usage.frames}


_SLICE_BYTES = 2**16  # 1.4 s of audio at 24 kHz, which take an encoder some milliseconds
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BodyRate = Annotated[QueriedRate, Query(description="Of the body.")]


def encode_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["speech"])
    conversions = service.ledger.pool("conversion")
    files = {form.media_type: _BINARY for form in FORMATS.values()}

    @router.post(
        "/v1/audio/encode",
        response_class=Response,
        responses={200: {"description": "The whole file.", "content": files}, **ERRORS},
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": _BINARY}}},
        summary="Encode PCM",
    )
    async def encode(request: Request, response_format: QueriedFormat, sample_rate: _BodyRate = 24_000) -> Response:
        """The body is 16-bit little-endian mono PCM."""
        encoder = open_file_encoder(response_format, rate_hz=sample_rate)
        pcm = await request.body()
        if not pcm or len(pcm) % 2:
            raise RequestError(f"the body must be 16-bit PCM of at least one sample, got {len(pcm)} bytes")

        async def produce(writer: ResponseWriter) -> None:
            with service.api_keys.stream(request.state.api_key), conversions.admit():
                data = await _encoded(pcm, AsyncEncoder(encoder, conversions.executor))
            headers = {"content-type": FORMATS[response_format].media_type}
            await write_whole(writer, data, headers, service.ledger["response"])

        return StreamingSpeechResponse(produce, service.config.stalled_s)

    return router


async def _encoded(pcm: bytes, encoder: AsyncEncoder) -> bytes:
    """Encodes in jobs of milliseconds, so that conversions share their thread and end when their clients leave."""
    with contextlib.closing(encoder):
        pieces = [await encoder.push(pcm[begin : begin + _SLICE_BYTES]) for begin in range(0, len(pcm), _SLICE_BYTES)]
        return b"".join((*pieces, await encoder.finish()))
