"""POST /v1/audio/speech: streams audio bytes or events, or returns the whole file."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from oscine.audio.encoders import FORMATS
from oscine.errors import FieldError
from oscine.server.api.response_form import ResponseForm, response_form
from oscine.server.api.schemas import SpeechBody
from oscine.server.api.speech_outcomes import SpeechOutcome
from oscine.server.api.word_fields import missing_times, verbose_words, word_event, word_headers
from oscine.server.http.errors import ApiError, ErrorDetail, api_error
from oscine.server.http.json_body import DirectJsonApp, JsonRoute
from oscine.server.http.logs import log_fields, request_id
from oscine.server.http.metrics import RequestMetrics
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse, write_with_audio
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan
from oscine.speech.narration import NarrationChunk, SegmentTiming
from oscine.speech.words import SegmentWords, WordTimer
from oscine.types import FinishReason, Usage

_log = logging.getLogger(__name__)

SPEECH_PATH = "/v1/audio/speech"

_MEDIA_TYPES = {"events": "text/event-stream; charset=utf-8", "json": "application/json"}
_MAX_READ_AS_CHARS = 500  # of the header x-read-as; events have the whole text
_UNQUOTED = " ,.;:!?'()-"
_SAMPLES = ("pcm", "wav", "flac")  # formats whose samples have a number of bits
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
    """The same without the router."""
    return DirectJsonApp(SpeechBody, partial(_response, service))


def _response(service: Service, body: SpeechBody, request: Request) -> Response:
    form = response_form(body, request.headers, service.config)
    handler = SpeechHandler(body, form, service, request.state.api_key)
    return StreamingSpeechResponse(handler.produce, service.config.stalled_s)


class SpeechHandler:
    """One request, from its body to the last byte of its response. A subclass writes other bytes than OpenAI's API."""

    def __init__(self, body: SpeechBody, form: ResponseForm, service: Service, key: str) -> None:
        self._body, self._form, self._service, self._key = body, form, service, key
        self._sends_events = form == "events"
        self._metrics = RequestMetrics(service.metrics, "sse" if self._sends_events else "http")
        self._words: WordTimer | None = None  # if the client wants the times of words

    async def produce(self, writer: ResponseWriter) -> None:
        try:
            self._service.check_ready()
            with self._service.api_keys.stream(self._key):
                model = self._service.route(self._body)
                self._metrics.use(model.metrics)
                with model.streams:
                    plan = await self._service.planner.plan(model, self._body, self._body.input)
                    self._words = self._word_timer(plan)
                    send = self._send_whole if self._form in ("whole", "json") else self._send_stream
                    async with contextlib.aclosing(self._service.narrate(plan)) as chunks:
                        last = await send(writer, plan, chunks)
            self._metrics.ended(200, last.finish_reason)
            self._keep_outcome(last.finish_reason, plan, usage=_usage_of_all(last.usage))
            self._log_done(plan, last)
        except (asyncio.CancelledError, ConnectionError):
            self._metrics.ended(499, "cancelled")
            self._keep_outcome("cancelled")
            _log.info("client disconnected", extra=log_fields(audio_s=round(self._metrics.audio_s, 3)))
            raise
        except Exception as exception:
            error = api_error(exception)
            self._metrics.ended(error.status, "error" if writer.started else None)
            self._keep_outcome("error" if writer.started else None, error=ErrorDetail(**error.body))
            _log.info("request failed", extra=log_fields(status=error.status, code=error.code, param=error.param))
            if self._sends_events and writer.started:
                # The response also stays incomplete: some clients ignore error events.
                await writer.write(self._error_event(error))
            raise error from None  # an unexpected one was logged
        finally:
            if self._words:
                self._words.close()

    def _keep_outcome(
        self,
        reason: FinishReason | None,
        plan: SpeechPlan | None = None,
        *,
        usage: dict[str, int] | None = None,
        error: ErrorDetail | None = None,
    ) -> None:
        audio_s = plan.playback_s(self._metrics.samples) if plan else self._metrics.audio_s
        outcome = SpeechOutcome(
            request_id=request_id.get(),
            finish_reason=reason,
            usage=usage,
            audio_seconds=round(audio_s, 3),
            seed=plan.seed if plan else None,
            error=error,
        )
        self._service.outcomes.add(self._key, outcome)

    def _word_timer(self, plan: SpeechPlan) -> WordTimer | None:
        if not self._body.word_timestamps:
            return None
        if self._form == "bytes":
            message = (
                "a stream of bytes has no place for word_timestamps; use stream_format 'sse' or 'json', or stream false"
            )
            raise FieldError(message, param="word_timestamps")
        return self._service.word_timer(plan)

    async def _send_stream(
        self, writer: ResponseWriter, plan: SpeechPlan, chunks: AsyncGenerator[NarrationChunk, None]
    ) -> NarrationChunk:
        encoder = self._service.encoder(plan)
        chunk = NarrationChunk(b"")
        try:
            async for chunk in chunks:
                data = await encoder.push(chunk.pcm)
                if chunk.finish_reason:
                    data += await encoder.finish()
                if not writer.started:
                    await writer.start(self._headers(plan))
                await writer.write(self._chunk_events(plan, chunk, data) if self._sends_events else data)
                self._metrics.sent(chunk.pcm)
                if self._words:
                    self._words.push(chunk)
                    await writer.write(_word_events(self._words.finished()))
        finally:
            encoder.close()
        if self._words:
            await writer.write(_word_events(await self._words.rest()))
        done = self._done_event(plan, chunk) if self._sends_events else b""
        await writer.write(done, more=False)
        return chunk

    async def _send_whole(
        self, writer: ResponseWriter, plan: SpeechPlan, chunks: AsyncGenerator[NarrationChunk, None]
    ) -> NarrationChunk:
        data, samples, last = await whole_file(self._service, plan, chunks, self._words)
        words = await self._words.rest() if self._words else []
        if self._form == "json":
            await self._send_json(writer, plan, data, samples, last, words)
            return last
        headers = {
            **(word_headers(words) if self._words else {}),
            "content-length": str(len(data)),
            "x-finish-reason": last.finish_reason or "",
            "x-audio-seconds": f"{plan.playback_s(samples):.3f}",
            "x-input-tokens": str(last.usage.text_ids),
            "x-output-tokens": str(last.usage.frames),
            "x-prompt-tokens": str(last.usage.text_ids),  # SGLang-Omni's names of these two
            "x-completion-tokens": str(last.usage.frames),
            **({"x-echo-trimmed-seconds": f"{last.echo_s / plan.speed:.2f}"} if last.echo_s else {}),
        }
        await writer.start({**self._headers(plan), **headers})
        await writer.write(data, more=False)
        self._metrics.sent_whole(samples)
        return last

    async def _send_json(
        self,
        writer: ResponseWriter,
        plan: SpeechPlan,
        data: bytes,
        samples: int,
        last: NarrationChunk,
        words: list[SegmentWords],
    ) -> None:
        warning = missing_times(words)
        fields = {
            "text": self._body.input,
            "response_format": plan.format.name,
            "sample_rate": plan.out_rate_hz,
            "duration": round(plan.playback_s(samples), 3),
            "finish_reason": last.finish_reason,
            "seed": plan.seed,
            "usage": usage_fields(last.usage),
            **({"words": verbose_words(words)} if self._words else {}),
            **({"warning": warning} if warning else {}),
        }
        await writer.start(self._headers(plan))
        await write_with_audio(writer, json.dumps(fields), "audio", data)
        await writer.write(b"", more=False)
        self._metrics.sent_whole(samples)

    def _headers(self, plan: SpeechPlan) -> dict[str, str]:
        return {
            "content-type": _MEDIA_TYPES.get(self._form, plan.format.media_type),
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # a buffering proxy would defeat streaming
            "x-sample-rate": str(plan.out_rate_hz),
            "x-channels": "1",
            **({"x-bit-depth": "16"} if plan.format.name in _SAMPLES else {}),
            "x-seed": str(plan.seed),
            **({"x-read-as": quote(read_as[:_MAX_READ_AS_CHARS], safe=_UNQUOTED)} if (read_as := plan.read_as) else {}),
            **({"x-model": quote(plan.model.name)} if self._service.models.several else {}),
            **({"x-ignored-fields": ", ".join(plan.ignored_fields)} if plan.ignored_fields else {}),
            **({"x-warning": "; ".join(warnings)} if (warnings := plan.client_warnings) else {}),
        }

    def _chunk_events(self, plan: SpeechPlan, chunk: NarrationChunk, data: bytes) -> bytes:
        audio = {"audio": base64.b64encode(data).decode(), "response_format": plan.format.name}
        delta = _event("speech.audio.delta", **audio) if data else b""
        return delta + (_event("speech.audio.segment", **segment_fields(plan, chunk.segment)) if chunk.segment else b"")

    def _done_event(self, plan: SpeechPlan, last: NarrationChunk) -> bytes:
        return _event(
            "speech.audio.done",
            finish_reason=last.finish_reason,
            seed=plan.seed,
            audio_seconds=round(plan.playback_s(self._metrics.samples), 3),
            usage=usage_fields(last.usage),
        )

    def _error_event(self, error: ApiError) -> bytes:
        is_for_sglang = self._service.config.live_protocol == "sglang-omni"
        kind = "error" if is_for_sglang else "speech.audio.error"
        return _event(kind, error=error.body, partial_audio=self._metrics.samples > 0)

    def _log_done(self, plan: SpeechPlan, last: NarrationChunk) -> None:
        first_s = self._metrics.first_audio_s
        fields = log_fields(
            model=plan.model.name if self._service.models.several else None,
            finish_reason=last.finish_reason,
            chars=len(self._body.input),
            segments=plan.segments,
            format=plan.format.name,
            audio_s=round(self._metrics.audio_s, 3),
            first_audio_ms=None if first_s is None else round(1000 * first_s, 1),
        )
        _log.info("spoken", extra=fields)
        if plan.warning:
            _log.warning(plan.warning)


async def whole_file(
    service: Service, plan: SpeechPlan, chunks: AsyncIterable[NarrationChunk], words: WordTimer | None = None
) -> tuple[bytes, int, NarrationChunk]:
    """The encoded file, its number of engine samples, and the last chunk."""
    pieces, samples, chunk = [], 0, NarrationChunk(b"")
    with contextlib.ExitStack() as on_error, contextlib.closing(service.file_encoder(plan)) as encoder:
        if words:
            on_error.callback(words.close)
        async for chunk in chunks:
            if words:
                words.push(chunk)
            pieces.append(await encoder.push(chunk.pcm))
            samples += len(chunk.pcm) // 2
        pieces.append(await encoder.finish())
        on_error.pop_all()
    return b"".join(pieces), samples, chunk


def segment_fields(plan: SpeechPlan, segment: SegmentTiming) -> dict[str, Any]:
    return {
        "index": segment.index,
        "text": segment.text,
        **({"spoken": segment.spoken.spoken} if segment.spoken else {}),
        "start_s": round(segment.start_s / plan.speed, 3),
        "end_s": round(segment.end_s / plan.speed, 3),
    }


def usage_fields(usage: Usage) -> dict[str, int]:
    total = usage.text_ids + usage.frames
    return {"input_tokens": usage.text_ids, "output_tokens": usage.frames, "total_tokens": total}


def _usage_of_all(usage: Usage) -> dict[str, int]:
    """The usage with SGLang-Omni's names too."""
    return {**usage_fields(usage), "prompt_tokens": usage.text_ids, "completion_tokens": usage.frames}


def _word_events(segments: Iterable[SegmentWords]) -> bytes:
    return b"".join(_event("speech.audio.words", **word_event(segment)) for segment in segments)


def _event(kind: str, **fields: Any) -> bytes:
    """Some clients dispatch on the event's name, others on the type in its data."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
