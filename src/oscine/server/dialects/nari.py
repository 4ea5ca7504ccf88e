"""WS /v1/audio/speech/ws: the protocol `nari.speech.v1` of nari-qwen3-tts. A connection speaks one text; every error is
its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from starlette.websockets import WebSocket

from oscine.errors import FieldError, RequestError
from oscine.server.http.errors import ApiError
from oscine.server.http.logs import request_id
from oscine.server.live.connection import ForeignConnection, ForeignMessage, LiveConnection, live_config, notes_of
from oscine.server.live.messages import (
    ClientMessage,
    CloseConnection,
    InFile,
    InputCancel,
    InputDone,
    InputText,
    LiveEvent,
    SessionClose,
    SessionReady,
    SpeechCancelled,
    UtteranceEnded,
)
from oscine.server.service import Service
from oscine.speech.events import Audio, Ended, Started

SequenceNumber = Annotated[int, Field(ge=0, lt=2**63)]
SUBPROTOCOL = "nari.speech.v1"
_PCM = ("pcm", "pcm16", "pcm_s16le")
_CLOSE_CODES = {413: 1009, 429: 1013, 503: 1013, 500: 1011}  # by status; else 1008


class NariStart(ForeignMessage):
    """The settings, beside `type`."""

    model_config = ConfigDict(extra="allow")
    type: Literal["request.start"]


class NariText(ForeignMessage):
    """The next piece of text. Pieces and the end are counted from 0."""

    type: Literal["input_text.append"]
    sequence: SequenceNumber
    text: str = Field(min_length=1)


class NariEnd(ForeignMessage):
    """Ends the text."""

    type: Literal["input_text.end"]
    sequence: SequenceNumber


class NariCancel(ForeignMessage):
    """Stops the speech, and closes the connection."""

    type: Literal["response.cancel"]


class NariConnection(ForeignConnection):
    kinds: ClassVar = {
        "request.start": NariStart,
        "input_text.append": NariText,
        "input_text.end": NariEnd,
        "response.cancel": NariCancel,
    }

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        self._request_id = f"ws-{request_id.get()}"
        self._audio = {"encoding": "pcm_s16le", "sample_rate": service.models.first.card.sample_rate_hz, "channels": 1}
        self._next_sequence = 0
        self._chunks = 0
        self._started = self._text_ended = self._cancelling = self._done = False

    def subprotocol(self, offered: Sequence[str]) -> str | None:
        return SUBPROTOCOL if SUBPROTOCOL in offered else None

    async def open(self) -> LiveConnection:
        if SUBPROTOCOL not in self._socket.scope["subprotocols"]:
            raise CloseConnection(1002, RequestError(f"this WebSocket needs the subprotocol {SUBPROTOCOL}; offer it"))
        await self._send_json("session.created", protocol=SUBPROTOCOL, audio=self._audio)
        return self

    # --- from the client ---

    async def _translate(self, message: Any) -> Sequence[ClientMessage]:
        match message:
            case NariStart():
                if self._started:
                    raise RequestError("request.start came twice; open another connection for another text")
                self._started = True
                return [self._config(dict(message.model_extra or {}))]
            case NariText():
                await self._take(message)
                return [InputText(type="input.text", text=message.text)]
            case NariEnd():
                await self._take(message)
                self._text_ended = True
                return [InputDone(type="input.done"), SessionClose(type="session.close")]
            case NariCancel():
                self._cancelling = True
                cancel = InputCancel(type="input.cancel", played_s=None, utterance_index=None)
                return [cancel, SessionClose(type="session.close")]
        raise AssertionError(message)

    async def _take(self, message: NariText | NariEnd) -> None:
        if not self._started or self._text_ended or self._cancelling:
            raise RequestError(f"{message.type} must come between request.start and input_text.end")
        if message.sequence != self._next_sequence:
            error = f"sequence must be {self._next_sequence}, got {message.sequence}; count appends and the end from 0"
            raise FieldError(error, param="sequence")
        self._next_sequence += 1
        await self._send_json(
            "input_text.ack", event=message.type, sequence=message.sequence, request_id=self._request_id
        )

    def _config(self, fields: dict[str, Any]) -> ClientMessage:
        if (instruction := fields.pop("instruction", None)) is not None:
            if fields.get("instruct") is not None or fields.get("instructions") is not None:
                raise FieldError("give only one of instruction, instruct and instructions", param="instruction")
            fields["instructions"] = instruction
        if fields.pop("response_format", "pcm") not in _PCM:
            raise FieldError(f"response_format must be one of {', '.join(_PCM)}", param="response_format")
        return live_config({**fields, "response_format": "pcm"})

    # --- to the client ---

    async def send(self, event: LiveEvent) -> None:
        match event:
            case SessionReady(plan=plan):
                await self._send_json("request.configured", **notes_of(plan))
            case InFile(_, Started()):
                await self._send_json("response.started", request_id=self._request_id, audio=self._audio)
            case InFile(_, Audio(data=data)):
                self._chunks += 1
                await self._send_binary(data)
            case InFile(_, Ended() as end):
                await self._send_done(end.finish_reason)
            case UtteranceEnded(files=0) if not self._cancelling:
                raise CloseConnection(1008, RequestError("the text has no words", code="empty_input"))
            case SpeechCancelled():
                await self._send_done("cancelled")

    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None:
        raise CloseConnection(_CLOSE_CODES.get(error.status, 1008), error)

    async def _send_end(self, end: CloseConnection) -> None:
        if end.error:
            retry = {} if end.error.retry_after_s is None else {"retry_after_s": end.error.retry_after_s}
            await self._send_json("error", request_id=self._request_id, error={**end.error.body, **retry})

    async def _send_done(self, reason: str) -> None:
        if not self._done:
            self._done = True
            await self._send_json(
                "response.done", request_id=self._request_id, stop_reason=reason, audio_chunks=self._chunks
            )
