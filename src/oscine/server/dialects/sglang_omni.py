"""WS /v1/audio/speech/stream for clients of SGLang-Omni. Those of vLLM-Omni and our own use the same path, and most of
the messages are the same: the first one tells the protocols apart.

Each sentence is a file. A commit ends an utterance of the live session, whose `session.done` becomes `input.committed`;
`input.done` ends the last one, and the connection.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict
from starlette.types import Message
from starlette.websockets import WebSocket

from oscine.errors import FieldError, RequestError
from oscine.server.dialects.connection import ForeignConnection, ForeignMessage, live_config
from oscine.server.http.errors import ApiError
from oscine.server.http.json_body import parse_json
from oscine.server.http.websocket_protocol import MAX_MESSAGE_BYTES
from oscine.server.live.config import LiveConfig
from oscine.server.live.connection import (
    ClientMessage,
    CloseConnection,
    InputDone,
    InputText,
    LiveConnection,
    SentenceEnd,
    SessionClose,
)
from oscine.server.service import Service

# Settings of SGLang-Omni's that our live protocol has too, with its defaults.
_DEFAULTS = {"response_format": "pcm", "split_granularity": "sentence", "stream_audio": False}


class ConfigureSession(ForeignMessage):
    """The settings are in `session`, or beside `type`."""

    model_config = ConfigDict(extra="allow")
    type: Literal["session.config"]
    session: dict[str, Any] | None = None


class AddText(ForeignMessage):
    """The next piece of text."""

    type: Literal["input.text"]
    text: str


class CommitText(ForeignMessage):
    """Speaks the rest of the text so far."""

    type: Literal["input.commit"]


class EndText(ForeignMessage):
    """Speaks the rest, and closes the connection."""

    type: Literal["input.done"]


class SglangOmniConnection(ForeignConnection):
    kinds: ClassVar = {
        "session.config": ConfigureSession,
        "input.text": AddText,
        "input.commit": CommitText,
        "input.done": EndText,
    }

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        # None: the first message tells. False: everything is left to LiveConnection.
        self._is_foreign = True if service.config.live_protocol == "sglang-omni" else None
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self._config: LiveConfig | None = None  # the last one that was sent
        self._configured = False  # one was accepted
        self._commits = 0
        self._ended = False  # input.done came
        self._sentences = self._committed_sentences = 0  # that have ended; of earlier utterances
        self._in_sentence = False

    @property
    def speaks_at_pauses(self) -> bool:  # type: ignore[override]
        return bool(self._is_foreign)

    def subprotocol(self, offered: Sequence[str]) -> str | None:
        chosen = super().subprotocol(offered)
        if chosen:
            self._is_foreign = False
        return chosen

    # --- from the client ---

    async def receive(self) -> ClientMessage:
        if self._is_foreign:
            return await super().receive()
        frame = await self._receive_frame()
        if self._is_foreign is None and _has_session(frame):
            self._is_foreign = True
            await self._take_frame(frame)
            return await super().receive()
        self._is_foreign = False
        return self._parse(frame)

    async def _translate(self, message: Any) -> Sequence[ClientMessage]:
        if not self._configured and not isinstance(message, ConfigureSession):
            raise FieldError(f"the first message must be session.config, not {message.type}", param="type")
        match message:
            case ConfigureSession():
                given = (message.model_extra or {}) if message.session is None else message.session
                settings = {**_DEFAULTS, **{name: value for name, value in given.items() if value is not None}}
                self._config = live_config(settings, shared=_DEFAULTS)
                return [self._config]
            case AddText():
                return [InputText(type="input.text", text=message.text), SentenceEnd()]
            case CommitText():
                self._commits += not self._ended
                return [InputDone(type="input.done")]
            case EndText():
                self._ended = True
                return [InputDone(type="input.done"), SessionClose(type="session.close")]
        raise AssertionError(message)

    # --- to the client ---

    async def send_event(self, kind: str, **fields: Any) -> None:
        if not self._is_foreign:
            await super().send_event(kind, **fields)
            return
        match kind:
            case "session.ready":
                await self._send_configured(fields)
            case "audio.start":
                self._in_sentence = True
                await super().send_event(kind, **{**fields, **self._sentence})
            case "audio.done":
                await super().send_event(kind, **{**fields, **self._sentence})
                self._in_sentence = False
                self._sentences += 1
            case "session.done":
                await self._send_utterance_end(fields["utterance_index"])
            case _:
                await super().send_event(kind, **fields)

    @property
    def _sentence(self) -> dict[str, Any]:
        return {"id": f"{self._session_id}-{self._sentences}", "sentence_index": self._sentences}

    async def _send_configured(self, ready: dict[str, Any]) -> None:
        assert self._config
        self._configured = True
        await super().send_event(
            "session.configured",
            session_id=self._session_id,
            response_format=ready["response_format"],
            stream_audio=self._config.stream_audio,
            split_granularity=self._config.split_granularity,
            **{name: ready[name] for name in ("ignored_fields", "warning") if name in ready},
        )

    async def _send_utterance_end(self, index: int) -> None:
        counted = {"session_id": self._session_id, "total_sentences": self._sentences}
        if self._ended and index == self._commits:
            await super().send_event("session.done", **counted)
        else:
            new = self._sentences - self._committed_sentences
            await super().send_event("input.committed", segment_index=index, segment_sentences=new, **counted)
        self._committed_sentences = self._sentences

    async def send_error(self, error: ApiError, utterance_index: int | None = None) -> None:
        if self._is_foreign:
            await super().send_error(error, utterance_index)
        else:
            await LiveConnection.send_error(self, error, utterance_index)

    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None:
        if not self._configured:
            raise CloseConnection(1008, error)
        await self._send_error_event(error)
        if utterance_index is not None and not self._in_sentence:  # else the live session ends it
            await self.send_event("audio.done", total_bytes=0, error=True)

    async def _send_end(self, end: CloseConnection) -> None:
        if not self._is_foreign:
            await super()._send_end(end)
        elif end.error:
            await self._send_error_event(end.error)

    async def _send_error_event(self, error: ApiError) -> None:
        is_bad_request = error.status == 400
        optional = {"param": error.param, "retry_after_s": error.retry_after_s}
        await super().send_event(
            "error",
            message=error.message,
            error_type="BadRequestError" if is_bad_request else error.body["type"],
            code=error.status if is_bad_request else error.code,
            error=error.body,
            **{name: value for name, value in optional.items() if value is not None},
        )


def _has_session(frame: Message) -> bool:
    """Whether it is a `session.config` whose settings are in `session`."""
    text = frame.get("text") or ""
    if '"session"' not in text or len(text) > MAX_MESSAGE_BYTES:
        return False
    try:
        fields = parse_json(text.encode(), what="message")
    except RequestError:
        return False  # the live protocol says what is wrong
    return (
        isinstance(fields, dict) and fields.get("type") == "session.config" and isinstance(fields.get("session"), dict)
    )
