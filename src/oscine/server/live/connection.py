"""The live WebSocket protocol: JSON messages from the client, JSON events and binary audio to the client."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from oscine.errors import FieldError, RequestError, unknown_choice
from oscine.server.api.schemas import LenientModel, StrictModel, invalid_field, shown_name
from oscine.server.http.access import SUBPROTOCOL
from oscine.server.http.errors import ApiError, api_error
from oscine.server.http.json_body import parse_json
from oscine.server.http.websocket_protocol import MAX_MESSAGE_BYTES
from oscine.server.live.config import OWN_EVENTS, LiveConfig

_MAX_REASON_BYTES = 120  # a close frame holds 123
_MAX_FRAME_BYTES = 2**20  # of audio: the default limit of Python's websockets
_CLOSE_TIMEOUT_S = 10.0  # for a client that does not read; on a busy machine others need seconds, too


class InputText(LenientModel):
    """The next piece of text, spaces included. The first one starts an utterance."""

    type: Literal["input.text"]
    text: str


class InputDone(LenientModel):
    """Ends the text of the utterance."""

    type: Literal["input.done"]


class InputCommit(LenientModel):
    """Speaks the text so far to its end. The utterance goes on."""

    type: Literal["input.commit"]
    commit_id: Annotated[str, Field(max_length=256)] | int | None = None


class InputCancel(StrictModel):
    """Stops the speech. What the listener heard follows from the position, or from the time."""

    type: Literal["input.cancel"]
    played_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    utterance_index: int | None = Field(None, ge=0)


class InputClear(StrictModel):
    """Not a message of this protocol: realtime/ translates others into it."""

    type: Literal["input.clear"] = "input.clear"


class SentenceEnd(StrictModel):
    """The next piece of the text may come late: a sentence that is complete is spoken now. Not a message of this
    protocol either."""

    type: Literal["input.sentence_end"] = "input.sentence_end"


class SessionClose(LenientModel):
    """Ends the text, speaks the rest, and closes the connection."""

    type: Literal["session.close"]


Parsed = TypeVar("Parsed", bound=BaseModel)
ClientMessage = LiveConfig | InputText | InputDone | InputCommit | InputClear | InputCancel | SentenceEnd | SessionClose
MESSAGES: dict[str, type[ClientMessage]] = {
    "session.config": LiveConfig,
    "input.text": InputText,
    "input.done": InputDone,
    "input.commit": InputCommit,
    "input.cancel": InputCancel,
    "session.close": SessionClose,
}


class RefusedConfigError(ApiError):
    """A `session.config` was refused."""

    @classmethod
    def of(cls, reason: Exception) -> RefusedConfigError:
        error = api_error(reason)
        return cls(error.status, error.message, param=error.param, code=error.code, retry_after_s=error.retry_after_s)


class CloseConnection(Exception):  # noqa: N818
    """Ends the session with this close code. The client receives `error` first."""

    def __init__(self, code: int, error: ApiError | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error


class LiveConnection:
    """A send raises ConnectionError or WebSocketDisconnect when the client is gone."""

    speaks_at_pauses = False  # a text that pauses is spoken to its end, even on a server with room

    def __init__(self, socket: WebSocket, stalled_s: float) -> None:
        self._socket, self._stalled_s = socket, stalled_s
        self.is_own_client = False  # it chose our subprotocol
        self._own_events: Collection[str] = ()  # that the client asked for

    def subprotocol(self, offered: Sequence[str]) -> str | None:
        self.is_own_client = SUBPROTOCOL in offered
        return SUBPROTOCOL if self.is_own_client else None

    def ask_for_events(self, names: Collection[str]) -> None:
        """Chooses among OWN_EVENTS; the others are always sent."""
        self._own_events = names

    async def open(self) -> None:
        """Called once, when the key was accepted and before any message is read."""

    async def receive(self) -> ClientMessage:
        """Raises ApiError or RequestError for a message that is refused, and WebSocketDisconnect."""
        return self._parse(await self._receive_frame())

    async def _receive_frame(self) -> Message:
        frame = await self._socket.receive()
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame["code"])
        return frame

    def _parse(self, frame: Message) -> ClientMessage:
        try:
            return parse_message(frame, MESSAGES)
        except (ApiError, RequestError) as error:
            # Broken JSON may be a configuration too. In a text, the quotes would be escaped.
            is_config = '"session.config"' in (frame.get("text") or "")
            raise RefusedConfigError.of(error) if is_config else error from None

    def sends(self, kind: str) -> bool:
        """Whether the client gets events of this kind."""
        return kind not in OWN_EVENTS or self.is_own_client or kind in self._own_events

    async def send_event(self, kind: str, **fields: Any) -> None:
        if not self.sends(kind):
            return
        await self._send({"type": "websocket.send", "text": json.dumps({"type": kind, **fields})})

    async def send_error(self, error: ApiError, utterance_index: int | None = None) -> None:
        optional = {"utterance_index": utterance_index, "retry_after_s": error.retry_after_s}
        given = {name: value for name, value in optional.items() if value is not None}
        # vLLM-Omni's clients read `message`, OpenAI's read `error`.
        await self.send_event("error", message=error.message, error=error.body, **given)

    async def send_audio(self, data: bytes) -> None:
        for begin in range(0, len(data), _MAX_FRAME_BYTES):
            await self._send({"type": "websocket.send", "bytes": data[begin : begin + _MAX_FRAME_BYTES]})

    async def close(self, end: CloseConnection) -> None:
        # RuntimeError: the server has closed the socket already.
        with contextlib.suppress(TimeoutError, ConnectionError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._send_end(end)
                reason = end.error.message.encode()[:_MAX_REASON_BYTES].decode(errors="ignore") if end.error else ""
                await self._socket.close(end.code, reason)

    async def _send_end(self, end: CloseConnection) -> None:
        if end.error:
            await self.send_error(end.error)

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._socket.send(message)
        except TimeoutError:
            raise ConnectionResetError(f"the client read no audio for {self._stalled_s:g} s") from None
        except RuntimeError as error:
            # The server closed the socket, for example after a broken frame or an unanswered ping.
            raise WebSocketDisconnect(1006) from error


def parse_message(frame: Message, kinds: Mapping[str, type[Parsed]]) -> Parsed:
    """`kinds` maps the `type` of a message to its fields. Raises ApiError, RequestError and CloseConnection."""
    text: str | None = frame.get("text")
    encoded: bytes = frame.get("bytes") or b"" if text is None else text.encode()
    if len(encoded) > MAX_MESSAGE_BYTES:
        limit = f"{MAX_MESSAGE_BYTES / 2**20:g} MiB"
        message = f"the message has {len(encoded)} bytes, the limit is {limit}; send less"
        raise CloseConnection(1009, ApiError(413, message))
    if text is None:
        message = "binary frames are not accepted; send JSON in text frames (a clip as base64, or upload it as a voice)"
        raise ApiError(400, message)
    fields = parse_json(encoded, what="message")
    if not isinstance(fields, dict):
        raise FieldError("the message must be a JSON object with a `type`")
    kind = fields.get("type")
    if kind is None:
        raise FieldError(f"type is missing; possible: {', '.join(kinds)}", param="type")
    if not isinstance(kind, str) or kind not in kinds:
        given = shown_name(kind) if isinstance(kind, str) else type(kind).__name__
        raise FieldError(unknown_choice("type", given, kinds), param="type")
    try:
        return kinds[kind].model_validate(fields)
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None
