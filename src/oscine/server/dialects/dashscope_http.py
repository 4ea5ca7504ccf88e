"""POST /api/v1/services/aigc/multimodal-generation/generation: the HTTP call of Qwen's hosted speech models, which
`dashscope.MultiModalConversation.call` makes. With the header X-DashScope-SSE: enable it streams events with PCM;
otherwise it answers with the URL of the whole file, which this server keeps for some minutes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from itertools import count
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from oscine.errors import FieldError, OscineError
from oscine.server.api.renderers import Call, Events, Json, usage_fields
from oscine.server.api.speech import SpeechHandler
from oscine.server.dialects.dashscope import cloud_name, own_fields
from oscine.server.http.errors import ApiError, ErrorResponse, api_error, error_headers, invalid_field
from oscine.server.http.json_body import read_json
from oscine.server.http.logs import request_id
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse, write_base64
from oscine.server.kept_files import FILES_PATH
from oscine.server.schemas import SpeechBody
from oscine.server.service import Service
from oscine.speech.events import Audio, Ended, SpeechEvent, Started, Words
from oscine.speech.plan import SpeechPlan

PATH = "/api/v1/services/aigc/multimodal-generation/generation"

_NO_WORDS = "this protocol has no place for word_timestamps; POST /v1/audio/speech has"
_TEXT = {"type": "string"}
_OBJECT = {"type": "object", "additionalProperties": True}
_INPUT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": _TEXT, "voice": _TEXT, "language_type": _TEXT, "instructions": _TEXT},
    "additionalProperties": True,
    "description": "The text, and settings of the cloud or of this API.",
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["input"],
                    "properties": {"model": _TEXT, "input": _INPUT, "parameters": _OBJECT},
                    "examples": [{"model": "qwen3-tts-flash", "input": {"text": "Hello there."}}],
                }
            }
        },
    }
}
_AUDIO = {
    "type": "object",
    "required": ["data", "url", "id"],
    "properties": {"data": _TEXT, "url": _TEXT, "id": _TEXT, "expires_at": {"type": "integer"}},
}
_ANSWER = {
    "type": "object",
    "required": ["request_id", "output", "usage"],
    "properties": {
        "request_id": _TEXT,
        "output": {"type": "object", "properties": {"finish_reason": _TEXT, "audio": _AUDIO}},
        "usage": {"type": "object", "additionalProperties": {"type": "integer"}},
        "status_code": {"type": "integer"},
    },
}
_SPOKEN = {
    "description": "The URL of the whole file; or events with base64 PCM.",
    "content": {"application/json": {"schema": _ANSWER}, "text/event-stream": {"schema": _TEXT}},
}


class DashScopeError(ErrorResponse):
    """The body of an error. It has `code` and `message` again where the SDK reads them."""

    request_id: str
    code: str
    message: str


def dashscope_routes(service: Service, errors: Mapping[int | str, dict[str, Any]]) -> APIRouter:
    """`errors` describe the statuses for the OpenAPI document."""
    router = APIRouter(tags=["speech"])
    refused: dict[int | str, dict[str, Any]] = {
        status: {"description": errors[status]["description"], "model": DashScopeError}
        for status in (400, 401, 404, 408, 413, 429, 503)
    }

    @router.post(
        PATH,
        summary="Speak a text, as Qwen's cloud does",
        response_class=Response,
        openapi_extra=_BODY,
        responses={200: _SPOKEN, **refused},
    )
    async def generation(request: Request) -> Response:
        """The call that `dashscope.MultiModalConversation.call` makes; `X-DashScope-SSE: enable` streams it."""
        # The key too is checked here, so that every error has the form that the SDK reads.
        try:
            key = service.api_keys.authenticate(request.headers, role="speak")
            fields = await read_json(await request.body(), service.clip_policy.max_chars)
            streams = request.headers.get("x-dashscope-sse") == "enable"
            body = _speech_body(fields, "pcm" if streams else "wav")
        except OscineError as reason:
            error = api_error(reason)
            service.metrics.refused("/v1/audio/speech", error.status)
            return _refusal(error)
        base_url = (service.config.public_url or str(request.base_url)).rstrip("/")
        handler = SpeechHandler(Call(body, service, key, base_url), EventsRenderer if streams else AnswerRenderer)
        return StreamingSpeechResponse(handler.produce, service.config.stalled_s, _refusal)

    return router


def _speech_body(given: Any, default_format: str) -> SpeechBody:
    text = given["input"].get("text") if isinstance(given, dict) and isinstance(given.get("input"), dict) else None
    if not isinstance(text, str):
        raise FieldError(
            'the body must have a text: {"model": ..., "input": {"text": ..., "voice": ...}}', param="text"
        )
    parameters = given.get("parameters")
    settings = {"model": given.get("model"), **(parameters if isinstance(parameters, dict) else {}), **given["input"]}
    try:
        return SpeechBody.model_validate({"response_format": default_format, **own_fields(settings)})
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None


def _refusal(exception: BaseException) -> Response:
    error = api_error(exception)
    return JSONResponse(_error_fields(error), error.status, error_headers(error))


def _error_fields(error: ApiError) -> dict[str, Any]:
    """The SDK reads `code` and `message`; `error` is as in our other endpoints."""
    about = {**error.body, "param": error.param and cloud_name(error.param)}
    return {"request_id": request_id.get(), "code": error.code, "message": error.message, "error": about}


class EventsRenderer(Events):
    no_words = _NO_WORDS

    def __init__(self, writer: ResponseWriter, plan: SpeechPlan, call: Call) -> None:
        super().__init__(writer, plan, call)
        self._numbers = count(1)

    async def render(self, event: SpeechEvent) -> None:
        match event:
            case Started():
                await self.start()
            case Audio(data=data) if data:
                await self._send("result", _answer(base64.b64encode(data).decode()))
            case Ended():
                await self._send(
                    "result", {**_answer("", "", event.finish_reason), "usage": _usage(self._call.body, event)}
                )
                await self._writer.write(b"", more=False)

    async def fail(self, error: ApiError) -> None:
        await self._send("error", _error_fields(error), f"status:{error.status}\n")

    async def _send(self, kind: str, fields: dict[str, Any], status: str = "") -> None:
        event = f"id:{next(self._numbers)}\nevent:{kind}\n{status}data:{json.dumps(fields)}\n\n"
        await self._writer.write(event.encode())


class AnswerRenderer(Json):
    no_words = _NO_WORDS

    async def send(self, data: bytes, words: list[Words], end: Ended) -> None:
        media_type = self._plan.format.media_type
        kept = self._call.service.kept_files.add(data, media_type, self._plan.format.name)
        about = {"usage": _usage(self._call.body, end), "status_code": 200}
        await self.start()
        if kept:
            answer = _answer("", f"{self._call.base_url}{FILES_PATH}{kept.name}", end.finish_reason)
            answer["output"]["audio"]["expires_at"] = kept.expires_at
            await self._writer.write(json.dumps({**answer, **about}).encode(), more=False)
        else:  # there is no room for the file: the URL holds it
            url = f"data:{media_type};base64,"
            before, after = json.dumps({**_answer("", url, end.finish_reason), **about}).split(url)
            await self._writer.write(f"{before}{url}".encode())
            await write_base64(self._writer, data)
            await self._writer.write(after.encode(), more=False)


def _usage(body: SpeechBody, end: Ended) -> dict[str, int]:
    return {"characters": body.chars, **usage_fields(end.usage)}


def _answer(data: str, url: str = "", finish_reason: str | None = None) -> dict[str, Any]:
    audio = {"data": data, "url": url, "id": f"audio_{request_id.get()}"}
    output = {"finish_reason": finish_reason or "null", "audio": audio}
    return {"request_id": request_id.get(), "output": output}
