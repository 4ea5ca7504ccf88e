"""What reads a client's bytes, as functions of bytes: any input gives a result or one of our own errors, soon.
`tools/fuzz.py` runs them under atheris, test_corpus.py over the corpus."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from fastapi import Request
from pydantic import ValidationError
from starlette.types import Message

from oscine.errors import RequestError
from oscine.server.api.voice_upload import read_upload
from oscine.server.api.voices import checked_import
from oscine.server.asyncapi import PROTOCOLS
from oscine.server.dialects.routes import protocol_of
from oscine.server.http import json_body
from oscine.server.http.errors import ApiError, api_error, invalid_field
from oscine.server.live.messages import CloseConnection, parse_message
from oscine.server.schemas import SpeechBody
from oscine.text.options import TextLevel, TextOptions
from oscine.text.preparation import Prepared, prepare_text
from oscine.text.spoken_text import SpokenText

_LANGUAGES = ("english", "german", "chinese", "auto")
_LEVELS: tuple[TextLevel, ...] = ("raw", "clean", "spoken")
_MAX_CHARS = 20_000
_loop = asyncio.new_event_loop()


def json_request(data: bytes) -> None:
    """A body of speech. Taking long strings out of it changes nothing."""
    parsed = _or_error(lambda: json_body.parse_json(data))
    taken = json_body.TakenStrings()
    rest = _or_error(lambda: _loop.run_until_complete(taken.take(data, 2**20)))
    if isinstance(parsed, RequestError) or isinstance(rest, RequestError):
        return
    again = taken.put_back(json_body.parse_json(rest))
    assert json.dumps(parsed) == json.dumps(again)
    try:
        body = SpeechBody.model_validate(parsed)
    except ValidationError as error:
        _check_answer(invalid_field(list(error.errors(include_url=False))))
    else:
        _or_error(body.request)


def multipart(data: bytes) -> None:
    _upload(data, "multipart/form-data; boundary=x")


def urlencoded(data: bytes) -> None:
    _upload(data, "application/x-www-form-urlencoded")


def websocket_message(data: bytes) -> None:
    frame: Message = {"type": "websocket.receive", "text": data.decode(errors="replace")}
    protocol_of(frame)
    for protocol in PROTOCOLS.values():
        _or_error(lambda kinds=protocol.messages: parse_message(frame, kinds))  # type: ignore[misc]


def voice_file(data: bytes) -> None:
    _or_error(lambda: checked_import(data, "name", "consent"))


def text(data: bytes) -> None:
    """The first byte chooses how a text is read. What is written is kept, in order."""
    choice, written = (data[0] if data else 0), data[1:].decode(errors="replace")
    level, language = _LEVELS[choice % 3], _LANGUAGES[choice // 3 % 4]
    options = TextOptions(text_level=level, paragraph_pause_s=1.0 if choice & 64 else None, markup=not choice & 128)
    prepared = _or_error(lambda: prepare_text(written, options, language, max_chars=_MAX_CHARS))
    if not isinstance(prepared, Exception):
        assert _chars(prepared) <= 2 * _MAX_CHARS


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (json_request, multipart, urlencoded, websocket_message, voice_file, text)
}


def _chars(prepared: list[Prepared]) -> int:
    return sum(len(one.spoken) for one in prepared if isinstance(one, SpokenText))


def _upload(body: bytes, content_type: str) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"content-type", content_type.encode())]}

    async def read() -> None:
        upload, _ = await read_upload(Request(scope, receive), 2**20)
        if upload.speaker_embedding is not None:
            upload.embedded_voice()

    _or_error(lambda: _loop.run_until_complete(read()))


def _or_error(call: Callable[[], Any]) -> Any:
    """The result, or an error of ours whose answer can be sent."""
    try:
        return call()
    except (RequestError, ApiError, CloseConnection) as error:
        _check_answer(error)
        return error


def _check_answer(error: Exception) -> None:
    reason = error if isinstance(error, RequestError | ApiError) else getattr(error, "error", None)
    if reason is not None:
        answer = api_error(reason)
        assert 400 <= answer.status < 500, answer.message
        assert len(json.dumps(answer.body).encode()) < 2**14
