"""POST /v1/audio/speech: bytes or events as the sound is made, or the whole file."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from oscine.narration import NarrationChunk, SegmentTiming
from oscine.server.encoders import encode_whole
from oscine.server.errors import api_error
from oscine.server.json_body import JsonRoute
from oscine.server.logs import facts
from oscine.server.metrics import SpeechMeter
from oscine.server.schemas import SpeechBody
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan, plan_speech
from oscine.server.streaming_response import Out, StreamingSpeechResponse
from oscine.types import Usage

_log = logging.getLogger(__name__)

_AUDIO = {"schema": {"type": "string", "format": "binary"}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Sound as it is made, in the format asked for; or events, or the whole file.",
        "content": {
            **{f"audio/{name}": _AUDIO for name in ("mpeg", "wav", "pcm", "ogg", "aac", "flac")},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


def speech_routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["speech"], route_class=JsonRoute)

    @router.post("/v1/audio/speech", response_class=Response, responses={**_ANSWERS, **errors}, summary="Speak a text")
    async def speech(body: SpeechBody, request: Request) -> Response:
        key: str = request.state.api_key
        return StreamingSpeechResponse(lambda out: _Speech(body, service, key).make(out), service.config.stalled_s)

    return router


class _Speech:
    """One request, from its body to its last byte."""

    def __init__(self, body: SpeechBody, service: Service, key: str) -> None:
        self._body, self._service, self._key = body, service, key
        mode = "sse" if body.events else "http"
        self._meter = SpeechMeter(service.metrics, mode, service.card.sample_rate_hz)

    async def make(self, out: Out) -> None:
        try:
            self._service.check_open()
            with self._service.access.stream(self._key):
                plan = await plan_speech(self._body, self._body.input, self._service)
                async with contextlib.aclosing(self._service.narrate(plan)) as sounds:
                    last = await self._send(out, plan, sounds)
            self._meter.ended(200, last.finish_reason)
            self._tell(plan, last)
        except (asyncio.CancelledError, ConnectionError):
            self._meter.ended(499, "cancelled")
            _log.info("the listener left", extra=facts(audio_s=round(self._meter.audio_s, 3)))
            raise
        except Exception as error:
            told = api_error(error)
            self._meter.ended(told.status, "error" if out.started else None)
            _log.info("not spoken", extra=facts(status=told.status, code=told.code, param=told.param))
            if self._body.events and out.started:
                # The body has no proper end either: there are clients that pass over events of errors.
                event = {"type": "speech.audio.error", "error": told.body, "partial_audio": self._meter.samples > 0}
                await out.write(_event(event))
            raise

    async def _send(self, out: Out, plan: SpeechPlan, sounds: AsyncGenerator[NarrationChunk, None]) -> NarrationChunk:
        if self._body.whole:
            return await self._send_whole(out, plan, sounds)
        encoder = self._service.encoder(plan)
        last = NarrationChunk(b"")
        try:
            async for sound in sounds:
                data = await encoder.push(sound.pcm)
                if sound.finish_reason:
                    data += await encoder.finish()
                if not out.started:
                    await out.start(self._headers(plan))
                await self._send_piece(out, plan, sound, data)
                self._meter.sent(sound.pcm)
                last = sound
        finally:
            encoder.close()
        await out.write(_event(_done(plan, self._meter.samples, last)) if self._body.events else b"", more=False)
        return last

    async def _send_piece(self, out: Out, plan: SpeechPlan, sound: NarrationChunk, data: bytes) -> None:
        if not self._body.events:
            await out.write(data)
            return
        events = b""
        if data:
            events += _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        if sound.segment:
            events += _event({"type": "speech.audio.segment", **segment_facts(plan, sound.segment)})
        await out.write(events)

    async def _send_whole(
        self, out: Out, plan: SpeechPlan, sounds: AsyncGenerator[NarrationChunk, None]
    ) -> NarrationChunk:
        data, samples, last = await whole_file(self._service, plan, sounds)
        headers = {
            "content-length": str(len(data)),
            "x-finish-reason": last.finish_reason or "",
            "x-audio-seconds": f"{plan.heard_s(samples):.3f}",
            "x-input-tokens": str(last.usage.text_ids),
            "x-output-tokens": str(last.usage.frames),
        }
        await out.start({**self._headers(plan), **headers})
        await out.write(data, more=False)
        self._meter.sent_whole(samples)
        return last

    def _headers(self, plan: SpeechPlan) -> dict[str, str]:
        media_type = "text/event-stream; charset=utf-8" if self._body.events else plan.format.media_type
        return {
            "content-type": media_type,
            "cache-control": "no-store",
            "x-accel-buffering": "no",  # a proxy that gathers would take the streaming away
            "x-sample-rate": str(plan.out_rate_hz),
            "x-seed": str(plan.seed),
            **({"x-ignored-fields": ", ".join(plan.ignored_fields)} if plan.ignored_fields else {}),
        }

    def _tell(self, plan: SpeechPlan, last: NarrationChunk) -> None:
        first_s = self._meter.first_audio_s
        _log.info(
            "spoken",
            extra=facts(
                finish_reason=last.finish_reason,
                chars=len(self._body.input),
                segments=len(plan.segments),
                format=plan.format.name,
                audio_s=round(self._meter.audio_s, 3),
                first_audio_ms=None if first_s is None else round(1000 * first_s, 1),
            ),
        )


async def whole_file(
    service: Service, plan: SpeechPlan, sounds: AsyncIterable[NarrationChunk]
) -> tuple[bytes, int, NarrationChunk]:
    """The file, how many samples were made for it, and the last of the sound."""
    pcm, last = bytearray(), NarrationChunk(b"")
    async for sound in sounds:
        pcm += sound.pcm
        last = sound
    data = await asyncio.get_running_loop().run_in_executor(
        service.encode_pool,
        lambda: encode_whole(
            plan.format.name, bytes(pcm), rate_hz=plan.rate_hz, out_rate_hz=plan.out_rate_hz, speed=plan.speed
        ),
    )
    return data, len(pcm) // 2, last


def segment_facts(plan: SpeechPlan, segment: SegmentTiming) -> dict[str, Any]:
    return {
        "index": segment.index,
        "text": segment.text,
        "start_s": round(segment.start_s / plan.speed, 3),
        "end_s": round(segment.end_s / plan.speed, 3),
    }


def usage_facts(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.text_ids,
        "output_tokens": usage.frames,
        "total_tokens": usage.text_ids + usage.frames,
    }


def _done(plan: SpeechPlan, samples: int, last: NarrationChunk) -> dict[str, Any]:
    return {
        "type": "speech.audio.done",
        "finish_reason": last.finish_reason,
        "seed": plan.seed,
        "audio_seconds": round(plan.heard_s(samples), 3),
        "usage": usage_facts(last.usage),
    }


def _event(message: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(message)}\n\n".encode()
