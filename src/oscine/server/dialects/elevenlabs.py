"""WS /v1/text-to-speech/{voice_id}/stream-input and /multi-stream-input: ElevenLabs' protocols for text that arrives in
pieces. Their messages have no `type`.

A connection speaks one text, or each of its contexts does. Contexts speak at the same time, so each has a live session
of its own, on a socket that has only the frames of this context.

client ─► MultiContextConnection ─► _ContextSocket ─► LiveSession ─► ElevenLabsConnection ─► client
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket

from oscine.errors import OverloadedError
from oscine.server.dialects.elevenlabs_http import NO_ALIGNER, Characters, CharacterTimes, error_code, own_fields
from oscine.server.http.errors import ApiError, invalid_field
from oscine.server.live.connection import ForeignConnection, ForeignMessage, live_config
from oscine.server.live.live_session import LiveSession
from oscine.server.live.messages import (
    ClientMessage,
    CloseConnection,
    InFile,
    InputClear,
    InputCommit,
    InputDone,
    InputText,
    LiveEvent,
    SessionClose,
    SessionReady,
    UtteranceEnded,
    parse_object,
)
from oscine.server.service import Service
from oscine.speech.events import Audio, SegmentEnded, Words

PATH = "/v1/text-to-speech/{voice_id}/stream-input"
MULTI_PATH = "/v1/text-to-speech/{voice_id}/multi-stream-input"
MAX_CONTEXTS = 16  # of a connection, with those that are ending
_MAX_UNREAD = 16  # messages of a context
_DEFAULT_CONTEXT = "default"
_END = json.dumps({"close_context": True})
_OWN_SETTINGS = ("auto_mode", "sync_alignment", "try_trigger_generation")  # of the protocol


class StreamInput(ForeignMessage):
    """The next piece of text. The first message also has the settings, beside those of the query. Without contexts, an
    empty text is the end."""

    model_config = ConfigDict(extra="allow")
    text: str | None = None
    flush: bool | None = Field(None, description="Speaks the text so far to its end.")
    context_id: Annotated[str, Field(max_length=256)] | None = None
    close_context: bool | None = Field(None, description="Ends the text. What was not flushed is not spoken.")
    close_socket: bool | None = Field(None, description="Ends all contexts, and closes the connection.")


class ElevenLabsConnection(ForeignConnection):
    kinds: ClassVar = {"input": StreamInput}

    def __init__(
        self,
        socket: WebSocket,
        service: Service,
        context_id: str | None = None,
        before_final: Callable[[], object] = lambda: None,
    ) -> None:
        """`context_id`: this is one context of a connection. `before_final` is called when its last message is sent."""
        super().__init__(socket, service)
        query = socket.query_params
        self._context_id, self._before_final = context_id, before_final
        self._flushes_all = query.get("auto_mode") == "true"
        # The clients that ask for `sync_alignment` read times of the whole context, the others of each message.
        self._times_of_all = query.get("sync_alignment") == "true"
        self._times, self._timed_s = CharacterTimes(), 0.0  # of what the client has the characters
        self._configured = self._has_text = self._has_unflushed = self._ended = self._finished = False
        self._notes: dict[str, Any] = {}  # about the settings; sent with the first audio

    # --- from the client ---

    def _parse_frame(self, frame: Message) -> StreamInput:
        try:
            return StreamInput.model_validate(parse_object(frame))
        except ValidationError as error:
            raise invalid_field(list(error.errors()), of_request=False) from None

    async def _translate(self, message: StreamInput) -> Sequence[ClientMessage]:
        if self._ended:  # what comes now has no effect
            return [SessionClose(type="session.close")]
        translated: list[ClientMessage] = []
        if not self._configured:
            self._configured = True
            translated.append(self._config(message.model_extra or {}))
        text = message.text or ""
        if text and (self._has_text or text.strip()):  # the first message has a blank for a text
            self._has_text = self._has_unflushed = True
            translated.append(InputText(type="input.text", text=text))
        if self._has_unflushed and (message.flush or self._flushes_all):
            self._has_unflushed = False
            translated.append(InputCommit(type="input.commit"))
        self._ended = bool(message.close_context) if self._context_id else message.text == ""
        if self._ended:
            drops = self._context_id and self._has_unflushed
            translated += [InputClear()] if drops else []
            translated += [InputDone(type="input.done"), SessionClose(type="session.close")]
        return translated

    def _config(self, first: dict[str, Any]) -> ClientMessage:
        given = {**self._socket.query_params, **first}
        settings = {name: value for name, value in given.items() if name not in _OWN_SETTINGS}
        fields = own_fields(settings, self._socket.path_params["voice_id"], self._service.models)
        aligner, language = self._service.aligner, str(fields.get("language", "auto"))
        timed = {"word_timestamps": True} if aligner and aligner.known([language]) else {}
        return live_config({**timed, **fields})

    # --- to the client ---

    async def send(self, event: LiveEvent) -> None:
        match event:
            case SessionReady(config=config, plan=plan):
                warnings = [*plan.field_warnings, *(() if config.word_timestamps else (NO_ALIGNER,))]
                ignored = {"ignored_fields": plan.ignored_fields} if plan.ignored_fields else {}
                self._notes = {**ignored, **({"warning": "; ".join(warnings)} if warnings else {})}
            case InFile(_, Audio(data=data)) if data:
                await self._send_audio(data)
            case InFile(_, SegmentEnded() | Words() as told):
                if found := self._times.add(told):
                    await self._send_audio(b"", found)
            case UtteranceEnded():
                await self._send_final()

    async def _send_audio(self, data: bytes, found: Characters | None = None) -> None:
        times = None
        if found:
            begin_s = 0.0 if self._times_of_all else self._timed_s
            ends_ms = [round(1000 * (end_s - begin_s)) for end_s in found.ends_s]
            starts_ms = [round(1000 * (start_s - begin_s)) for start_s in found.starts_s]
            durations_ms = [end - start for start, end in zip(starts_ms, ends_ms, strict=True)]
            times = {"chars": found.chars, "charStartTimesMs": starts_ms, "charDurationsMs": durations_ms}
            self._timed_s = found.ends_s[-1]
        audio = base64.b64encode(data).decode()
        await self._send_json("audio", audio=audio, alignment=times, normalizedAlignment=times, **self._notes)
        self._notes = {}

    async def _send_final(self) -> None:
        if not self._finished:
            self._finished = True
            self._before_final()
            await self._send_json("final", audio=None, isFinal=True)

    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None:
        raise CloseConnection(1011 if error.status >= 500 else 1008, error)

    async def _send_end(self, end: CloseConnection) -> None:
        if end.error:
            _, code = error_code(end.error)
            await self._send_json("error", message=end.error.message, error=code, code=end.code)
            if self._context_id:  # some clients read nothing else of a context
                await self._send_final()

    async def _send_json(self, kind: str, **fields: Any) -> None:
        context = {"contextId": self._context_id} if self._context_id else {}
        await self._send_frame({"type": "websocket.send", "text": json.dumps({**fields, **context})})


class MultiContextConnection(ElevenLabsConnection):
    """Its own session speaks nothing. It has the key, the idle time and the end of the connection."""

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        self._contexts: dict[str, _ContextSocket] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_speaking(self) -> bool:
        return bool(self._contexts)

    async def _translate(self, message: StreamInput) -> Sequence[ClientMessage]:
        if message.close_socket:
            for one in [*self._contexts.values()]:
                await one.put(_END)
            if self._tasks:
                await asyncio.wait(self._tasks)
            return [SessionClose(type="session.close")]
        context_id = message.context_id or _DEFAULT_CONTEXT
        # An empty text keeps a context alive. For one that does not exist, nothing is to be done.
        if (context := self._contexts.get(context_id)) is None and message.text and not message.close_context:
            context = await self._open_context(context_id)
        if context:
            await context.put(message.model_dump_json(exclude_unset=True))
        return []

    async def _open_context(self, context_id: str) -> _ContextSocket | None:
        context = _ContextSocket(self._socket)
        # When the client reads the end of a context, it may use the name again.
        forget = partial(self._contexts.pop, context_id, None)
        connection = ElevenLabsConnection(context, self._service, context_id, forget)  # type: ignore[arg-type]
        if len(self._contexts) >= MAX_CONTEXTS:
            reason = f"{MAX_CONTEXTS} contexts of this connection speak (the maximum); close some, or connect again"
            error = OverloadedError(reason, retry_after_s=1.0, code="too_many_contexts")
            await connection.close(CloseConnection(1008, error))
            return None
        self._contexts[context_id] = context
        task = asyncio.create_task(self._run_context(context_id, context, connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return context

    async def _run_context(self, context_id: str, context: _ContextSocket, connection: ElevenLabsConnection) -> None:
        try:
            await LiveSession(context, self._service, connection).run()  # type: ignore[arg-type]
        finally:
            if self._contexts.get(context_id) is context:
                del self._contexts[context_id]
            context.drop_unread()

    async def cancel(self) -> None:
        """Stops all contexts, when the connection has ended."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


class _ContextSocket:
    """One context of a connection, as a WebSocket."""

    def __init__(self, socket: WebSocket) -> None:
        self.scope, self.headers = {"subprotocols": socket.scope["subprotocols"]}, socket.headers
        self.query_params, self.path_params = socket.query_params, socket.path_params
        self.send = socket.send
        self._unread: asyncio.Queue[str] = asyncio.Queue(_MAX_UNREAD)

    async def put(self, text: str) -> None:
        await self._unread.put(text)

    def drop_unread(self) -> None:
        """Drops the messages that nobody will read, so that `put` does not wait for room."""
        while not self._unread.empty():
            self._unread.get_nowait()

    async def receive(self) -> Message:
        return {"type": "websocket.receive", "text": await self._unread.get()}

    async def accept(self, *_: object) -> None: ...

    async def close(self, *_: object) -> None: ...
