"""WS /v1/audio/speech/stream for clients of SGLang-Omni.

Each sentence is a file. A commit ends an utterance of the live session, whose `session.done` becomes `input.committed`;
`input.done` ends the last one, and the connection.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from starlette.websockets import WebSocket

from oscine.errors import FieldError
from oscine.server.http.errors import ApiError
from oscine.server.live.connection import ForeignConnection, ForeignMessage, live_config, ready_fields
from oscine.server.live.messages import (
    ClientMessage,
    CloseConnection,
    InFile,
    InputDone,
    InputText,
    LiveEvent,
    LiveFile,
    SentenceEnd,
    SessionClose,
    SessionReady,
    UtteranceEnded,
)
from oscine.server.service import Service
from oscine.speech.events import Ended, Started

# Settings of SGLang-Omni's that our live protocol has too, with its defaults.
_DEFAULTS = {"split_granularity": "sentence", "stream_audio": False}


class SglangConfig(ForeignMessage):
    """The settings are in `session`, or beside `type`."""

    model_config = ConfigDict(extra="allow")
    type: Literal["session.config"]
    session: dict[str, Any] | None = None


class SglangText(ForeignMessage):
    """The next piece of text."""

    type: Literal["input.text"]
    text: str


class SglangCommit(ForeignMessage):
    """Speaks the rest of the text so far."""

    type: Literal["input.commit"]


class SglangEnd(ForeignMessage):
    """Speaks the rest, and closes the connection."""

    type: Literal["input.done"]


class SglangOmniConnection(ForeignConnection):
    speaks_at_pauses = True
    kinds: ClassVar = {
        "session.config": SglangConfig,
        "input.text": SglangText,
        "input.commit": SglangCommit,
        "input.done": SglangEnd,
    }

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self._configured = False  # one was accepted
        self._commits = 0
        self._ended = False  # input.done came
        self._sentences = self._committed_sentences = 0  # that have ended; of earlier utterances
        self._in_sentence = False

    # --- from the client ---

    async def _translate(self, message: Any) -> Sequence[ClientMessage]:
        if not self._configured and not isinstance(message, SglangConfig):
            raise FieldError(f"the first message must be session.config, not {message.type}", param="type")
        match message:
            case SglangConfig():
                given = (message.model_extra or {}) if message.session is None else message.session
                settings = {**_DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
                return [live_config(settings, shared=_DEFAULTS)]
            case SglangText():
                return [InputText(type="input.text", text=message.text), SentenceEnd()]
            case SglangCommit():
                self._commits += not self._ended
                return [InputDone(type="input.done")]
            case SglangEnd():
                self._ended = True
                return [InputDone(type="input.done"), SessionClose(type="session.close")]
        raise AssertionError(message)

    # --- to the client ---

    async def send(self, event: LiveEvent) -> None:
        match event:
            case SessionReady():
                await self._send_configured(event)
            case InFile(_, Started()):
                self._in_sentence = True
                await super().send(event)
            case InFile(_, Ended()):
                await super().send(event)
                self._in_sentence = False
                self._sentences += 1
            case UtteranceEnded():
                await self._send_utterance_end(event.utterance)
            case _:
                await super().send(event)

    @property
    def _sentence(self) -> dict[str, Any]:
        return {"id": f"{self._session_id}-{self._sentences}", "sentence_index": self._sentences}

    def _start_fields(self, file: LiveFile, start: Started) -> dict[str, Any]:
        return {**super()._start_fields(file, start), **self._sentence}

    def _done_fields(self, file: LiveFile, end: Ended) -> dict[str, Any]:
        return {**super()._done_fields(file, end), **self._sentence}

    async def _send_configured(self, ready: SessionReady) -> None:
        self._configured = True
        about = ready_fields(ready)
        await self._send_json(
            "session.configured",
            session_id=self._session_id,
            response_format=about["response_format"],
            stream_audio=ready.config.stream_audio,
            split_granularity=ready.config.split_granularity,
            **{name: about[name] for name in ("ignored_fields", "warning") if name in about},
        )

    async def _send_utterance_end(self, index: int) -> None:
        counted = {"session_id": self._session_id, "total_sentences": self._sentences}
        if self._ended and index == self._commits:
            await self._send_json("session.done", **counted)
        else:
            new = self._sentences - self._committed_sentences
            await self._send_json("input.committed", segment_index=index, segment_sentences=new, **counted)
        self._committed_sentences = self._sentences

    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None:
        if not self._configured:
            raise CloseConnection(1008, error)
        await self._send_error_event(error)
        if utterance_index is not None and not self._in_sentence:  # else the live session ends it
            await self._send_json("audio.done", total_bytes=0, error=True, **self._sentence)
            self._sentences += 1

    async def _send_end(self, end: CloseConnection) -> None:
        if end.error:
            await self._send_error_event(end.error)

    async def _send_error_event(self, error: ApiError) -> None:
        is_bad_request = error.status == 400
        optional = {"param": error.param, "retry_after_s": error.retry_after_s}
        await self._send_json(
            "error",
            message=error.message,
            error_type="BadRequestError" if is_bad_request else error.body["type"],
            code=error.status if is_bad_request else error.code,
            error=error.body,
            **{name: value for name, value in optional.items() if value is not None},
        )
