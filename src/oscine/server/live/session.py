"""WS /v1/audio/speech/stream: text in pieces, as a language model makes it, sound in pieces. Here is the session; one
utterance's life is in live_speech.py.

Three tasks share a socket: one reads, one speaks the utterances in their order, one watches the time. The session ends
when one of them raises, and what it raised says how.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from dataclasses import replace
from typing import Any, Literal

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocketDisconnect

from oscine.narration import PlaybackClock
from oscine.server.api_keys import SUBPROTOCOL
from oscine.server.errors import ApiError, api_error
from oscine.server.live.playback_position import Heard, listening_to, played_of
from oscine.server.live.speech import Line, LiveSpeech, check_speakable
from oscine.server.live.text import check_letters
from oscine.server.logs import request_id
from oscine.server.schemas import FIELDS, LiveConfig, invalid_field
from oscine.server.service import Service
from oscine.server.speech_plan import SpeechPlan, plan_speech
from oscine.types import OscineError, unknown_choice

_MAX_MESSAGE_BYTES = 4 * 2**20  # a voice's clip may be in it
_MAX_NAME_CHARS = 64  # of a type or field that is looked up among ours
_MAX_BAD_MESSAGES = 100  # in a row
_MAX_UTTERANCES = 1000  # that wait for their turn
_HEARD_KEPT = 100  # utterances that have been spoken, and that a slow listener may still hear
_MAX_REASON_BYTES = 120  # of a close frame
_WATCH_S = 0.5
_LAST_WORDS_S = 2.0  # that a client has time to take them


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class InputText(_Message):
    type: Literal["input.text"]
    text: str


class InputDone(_Message):
    type: Literal["input.done"]


class InputCancel(_Message):
    type: Literal["input.cancel"]
    played_s: float | None = Field(None, ge=0, allow_inf_nan=False)
    utterance_index: int | None = Field(None, ge=0)


class SessionClose(_Message):
    type: Literal["session.close"]


ClientMessage = LiveConfig | InputText | InputDone | InputCancel | SessionClose
_MESSAGES: dict[str, type[ClientMessage]] = {
    "session.config": LiveConfig,
    "input.text": InputText,
    "input.done": InputDone,
    "input.cancel": InputCancel,
    "session.close": SessionClose,
}


class _HangUp(Exception):  # noqa: N818
    """The session is over: the code to close with, and what the client is told before."""

    def __init__(self, code: int, error: ApiError | None = None) -> None:
        super().__init__(code)
        self.code, self.error = code, error

    @property
    def reason(self) -> str:
        return self.error.message.encode()[:_MAX_REASON_BYTES].decode(errors="ignore") if self.error else ""


def live_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/audio/speech/stream")
    async def live(socket: WebSocket) -> None:
        await _Session(socket, service).run()

    return router


class _Session:
    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket, self._service = socket, service
        self._line = Line(socket, service.config.stalled_s)
        self._clock = PlaybackClock()
        self._key = ""
        self._plan: SpeechPlan | None = None
        self._draws_seeds = True
        self._speeches: deque[LiveSpeech] = deque()  # the first one is being spoken
        self._writing: LiveSpeech | None = None  # the last of them, while its text is open
        self._spoken: deque[Heard] = deque(maxlen=_HEARD_KEPT)  # newest first
        self._begun = 0  # utterances
        self._bad_messages = 0
        self._closing = False
        self._news = asyncio.Event()  # for the speaker
        self._active_s = time.monotonic()

    async def run(self) -> None:
        offered = self._socket.scope["subprotocols"]
        headers = [(b"x-request-id", request_id.get().encode())]
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None, headers)
        # A browser shows its page nothing of a handshake that failed: whoever may not come in is told inside.
        try:
            self._key = self._service.access.key_of(self._socket.headers.get("authorization"), offered)
            self._service.check_open()
        except ApiError as error:
            await self._hang_up(_HangUp(1008 if error.status == 401 else 1013, error))
            return
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._read())
                self._tasks.create_task(self._watch())
                self._speaker = self._tasks.create_task(self._speak())
        except ExceptionGroup as group:
            await self._hang_up(_end_of(group))

    async def _hang_up(self, end: _HangUp | None) -> None:
        if end is None:
            return
        # RuntimeError: the socket has been closed below us in the meantime.
        with contextlib.suppress(TimeoutError, ConnectionError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(_LAST_WORDS_S):
                if end.error:
                    await self._line.tell_error(end.error)
                await self._socket.close(end.code, end.reason)

    # --- the speaker ---

    async def _speak(self) -> None:
        while True:
            self._check_draining()
            if self._speeches:
                await self._speeches[0].run()
                self._spoken.appendleft(self._speeches.popleft().heard)
            elif self._closing:
                raise _HangUp(1000)
            else:
                self._news.clear()
                await self._news.wait()

    # --- the watch ---

    async def _watch(self) -> None:
        idle_s = self._service.config.live_idle_s
        while True:
            await asyncio.sleep(_WATCH_S)
            if not self._speeches:
                self._check_draining()
            waits_for_us = any(speech.text_ended for speech in self._speeches)
            if waits_for_us or self._clock.unplayed_s:
                self._active_s = time.monotonic()
            elif time.monotonic() - self._active_s >= idle_s:
                message = f"nothing was said or heard for {idle_s:g} s; connect again when there is something to say"
                raise _HangUp(4408, ApiError(408, message, code="idle_timeout"))

    def _check_draining(self) -> None:
        if self._service.draining:
            message = "the server is about to stop; connect again in a moment"
            raise _HangUp(1013, ApiError(503, message, retry_after_s=5.0))

    # --- the reader ---

    async def _read(self) -> None:
        while True:
            received = await self._socket.receive()
            if received["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(received["code"])
            self._active_s = time.monotonic()
            try:
                await self._obey(_parse(received))
                self._bad_messages = 0
            except (ApiError, OscineError) as error:
                await self._refuse(api_error(error))

    async def _refuse(self, error: ApiError) -> None:
        await self._line.tell_error(error)
        self._bad_messages += 1
        if self._bad_messages >= _MAX_BAD_MESSAGES:
            message = f"{self._bad_messages} messages in a row could not be used; see docs/api.md for what can be sent"
            raise _HangUp(1008, ApiError(400, message, code="too_many_errors"))

    async def _obey(self, message: ClientMessage) -> None:
        if self._closing and not isinstance(message, InputCancel | SessionClose):
            raise ApiError(400, f"{message.type} came after session.close; connect again for more")
        match message:
            case LiveConfig():
                await self._configure(message)
            case InputText():
                self._take_text(message.text)
            case InputDone():
                (self._writing or self._begin()).end_text()
                self._writing = None
            case InputCancel():
                await self._cancel(message)
            case SessionClose():
                self._closing = True
                if self._writing:
                    self._writing.end_text()
                self._writing = None
                self._news.set()

    async def _configure(self, config: LiveConfig) -> None:
        plan = await plan_speech(config, "", self._service, "pcm")
        check_speakable(plan.request, self._service.card)
        self._plan = plan
        seeds = (config.seed, config.extra_params and config.extra_params.seed)
        self._draws_seeds = seeds == (None, None)
        ignored = {"ignored_fields": plan.ignored_fields} if plan.ignored_fields else {}
        await self._line.tell(
            "session.ready",
            request_id=request_id.get(),
            response_format=plan.format.name,
            sample_rate=plan.out_rate_hz,
            **ignored,
        )

    def _take_text(self, text: str) -> None:
        if not text:
            return
        check_letters(text, "text")
        most = self._service.config.max_text_chars
        waiting = sum(speech.pending_chars for speech in self._speeches)
        if waiting + len(text) > most:
            raise ApiError(
                413,
                f"{waiting} characters wait to be spoken, {len(text)} more would exceed the limit of {most}; "
                "this piece is not taken: send it again when more has been spoken",
                param="text",
            )
        if self._writing is None:
            self._writing = self._begin()
        self._writing.push(text)

    def _begin(self) -> LiveSpeech:
        if len(self._speeches) > _MAX_UTTERANCES:
            message = f"{_MAX_UTTERANCES} utterances wait for their turn, which is as many as may; send fewer at once"
            raise _HangUp(1008, ApiError(429, message, code="too_many_utterances"))
        plan = self._plan
        if plan and self._draws_seeds:
            plan = replace(plan, request=replace(plan.request, seed=secrets.randbits(63)))
        speech = LiveSpeech(self._service, self._line, self._clock, self._key, self._begun, plan)
        self._begun += 1
        self._speeches.append(speech)
        self._news.set()
        return speech

    async def _cancel(self, asked: InputCancel) -> None:
        """Everything that is spoken or waits for it ends, and the client is told how much of it was heard."""
        if asked.utterance_index is not None and asked.utterance_index >= self._begun:
            begun = f"0 to {self._begun - 1} were begun" if self._begun else "none was begun"
            message = (
                f"there is no utterance {asked.utterance_index}: {begun}; leave the field out to stop whatever is heard"
            )
            raise ApiError(422, message, param="utterance_index")
        speeches, self._writing = list(self._speeches), None
        for speech in speeches:
            speech.cancel()
        self._speaker.cancel()
        heard, played_s = self._heard(asked)
        await asyncio.wait({self._speaker})
        for speech in speeches:
            await speech.tell_cancelled(played_s if speech.heard is heard else 0.0)
        await self._line.tell(
            "input.cancelled",
            utterance_index=heard.utterance_index if heard else None,
            played_s=round(played_s, 3),
            spoken_text=heard.text_until(played_s) if heard else "",
        )
        self._speeches.clear()
        self._spoken.clear()
        self._clock.stop()
        self._speaker = self._tasks.create_task(self._speak())

    def _heard(self, asked: InputCancel) -> tuple[Heard | None, float]:
        """Which utterance the listener hears, and how much of it: sound is made faster than it is played, so that need
        not be the one that is being spoken. The client knows best; else it is as if each piece were played at once."""
        sent = [*(speech.heard for speech in reversed(self._speeches)), *self._spoken]  # newest first
        unplayed_s = self._clock.unplayed_s
        if asked.utterance_index is None:
            heard, played_s = listening_to([heard for heard in sent if heard.sent_s], unplayed_s)
        else:
            heard = next((heard for heard in sent if heard.utterance_index == asked.utterance_index), None)
            played_s = played_of(heard, sent, unplayed_s) if heard else 0.0
        return heard, played_s if asked.played_s is None or heard is None else min(asked.played_s, heard.sent_s)


def _parse(received: Message) -> ClientMessage:
    raw: str | None = received.get("text")
    size = len(received.get("bytes") or b"") if raw is None else len(raw.encode())
    if size > _MAX_MESSAGE_BYTES:
        limit = f"{_MAX_MESSAGE_BYTES / 2**20:g} MiB"
        raise _HangUp(1009, ApiError(413, f"a message of {size} bytes came, the limit is {limit}; send less at once"))
    if raw is None:
        raise ApiError(400, "a binary frame came; send JSON in text frames (a clip as base64, or upload it as a voice)")
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the message is not JSON ({error}); send one JSON object") from None
    if not isinstance(message, dict):
        raise ApiError(422, "the message must be one JSON object, with its `type`")
    kind = message.get("type")
    if kind is None:
        raise ApiError(422, f"type is missing; say which of {', '.join(_MESSAGES)} it is", param="type")
    if not isinstance(kind, str) or kind not in _MESSAGES:
        asked = kind[:_MAX_NAME_CHARS] if isinstance(kind, str) else type(kind).__name__
        raise ApiError(422, unknown_choice("type", asked, _MESSAGES), param="type")
    return _checked(_MESSAGES[kind], message)


def _checked(model: type[ClientMessage], message: dict[str, Any]) -> ClientMessage:
    known = FIELDS[LiveConfig] if model is LiveConfig else sorted(model.model_fields)
    for name in message:
        if name not in known:
            param = name if len(name) <= _MAX_NAME_CHARS else None
            raise ApiError(422, unknown_choice("field", name[:_MAX_NAME_CHARS], known), param=param)
    try:
        return model.model_validate(message)
    except ValidationError as error:
        raise invalid_field(list(error.errors()), known) from None


def _end_of(group: ExceptionGroup[Exception]) -> _HangUp | None:
    """None: the client is gone, nobody is left to be told."""
    if any(isinstance(error, ConnectionError | WebSocketDisconnect) for error in group.exceptions):
        return None
    ends = [error for error in group.exceptions if isinstance(error, _HangUp)]
    return ends[0] if ends else _HangUp(1011, api_error(group.exceptions[0]))
