"""WS /v1/audio/speech/stream: streaming text in, streaming audio out. connection.py has the protocol, utterance.py
speaks one utterance.

Each session has three tasks: one reads messages, one speaks the utterances in order, one watches for idle sessions.
The session ends when one of them raises; the exception decides how the connection is closed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from dataclasses import replace

from starlette.websockets import WebSocket, WebSocketDisconnect

from oscine.errors import (
    FieldError,
    NotReadyError,
    OscineError,
    OverloadedError,
    RequestError,
    TimedOutError,
    UnauthorizedError,
    clear_tracebacks,
)
from oscine.request import MAX_TURNS, RANDOM_SEED, SpeechRequest, VoiceSource
from oscine.server.http.api_keys import MissingRoleError
from oscine.server.http.errors import api_error
from oscine.server.http.logs import request_id
from oscine.server.live.connection import LiveConnection
from oscine.server.live.messages import (
    ClientMessage,
    CloseConnection,
    InputCancel,
    InputClear,
    InputCommit,
    InputDone,
    InputText,
    InputTurn,
    LiveConfig,
    RefusedConfigError,
    SentenceEnd,
    SessionClose,
    SessionReady,
    SpeechCancelled,
    TextCommitted,
    TooMuchTextError,
)
from oscine.server.live.utterance import LiveUtterance
from oscine.server.service import Service
from oscine.speech.capabilities import check_characters, resolve_request
from oscine.speech.clock import PlaybackClock, UtteranceTimeline, playback_position
from oscine.speech.plan import SpeechPlan
from oscine.speech.word_times import check_aligner

_MAX_BAD_MESSAGES = 100  # in a row
_MAX_QUEUED_UTTERANCES = 1000
_MAX_SPOKEN_TIMELINES = 100  # utterances that were sent whole and may still be playing
_WATCH_INTERVAL_S = 0.5
_LENIENT = (InputText, InputTurn, InputDone, InputCommit, SessionClose)  # those without settings
_CHARACTER_BYTES = 4  # at most
_UTTERANCE_BYTES = 8 * 2**10  # of one that waits to be spoken, beside its text
_PUSH_CHARS = 2000  # segmented at once; a thousand characters take a millisecond
_PUSH_NUMBERS = 100  # the same for texts whose numbers are spelled out; one takes up to a tenth of a millisecond


class LiveSession:
    def __init__(self, socket: WebSocket, service: Service, connection: LiveConnection) -> None:
        """`connection` may speak another protocol than the live one (dialects/)."""
        self._socket, self._service, self._connection = socket, service, connection
        self._clock = PlaybackClock()
        self._api_key = ""
        self._plan: SpeechPlan | None = None  # None: the defaults
        self._asked = SpeechRequest()  # as the client asked
        self._refused_turn = False  # the text that comes next has no voice
        self._refused_config: OscineError | None = None  # the last one, while none was accepted
        self._random_seeds = True
        self._utterances: deque[LiveUtterance] = deque()  # the first one is being spoken
        self._open: LiveUtterance | None = None  # the last one, while its text may grow
        self._spoken: deque[UtteranceTimeline] = deque(maxlen=_MAX_SPOKEN_TIMELINES)  # newest first
        self._utterance_count = 0
        self._bad_messages = 0
        self._closing = False
        self._speaker: asyncio.Task[None] | None = None
        self._wake_speaker = asyncio.Event()
        self._pending_text = service.ledger["live_text"].open()
        self._active_s = time.monotonic()

    async def run(self) -> None:
        offered = self._socket.scope["subprotocols"]
        headers = [(b"x-request-id", request_id.get().encode())]
        await self._socket.accept(self._connection.subprotocol(offered), headers)
        # After the handshake: a browser hides the reason of a failed handshake from its page.
        try:
            self._api_key = self._service.api_keys.authenticate(self._socket.headers, offered, "speak")
            self._service.check_ready()
        except OscineError as reason:
            error = api_error(reason)
            await self._connection.close(CloseConnection(1008 if error.status in (401, 403) else 1013, error))
            return
        left = False
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._read())
                self._tasks.create_task(self._watch())
                self._speaker = self._tasks.create_task(self._speak())
        except ExceptionGroup as group:
            left = any(isinstance(error, ConnectionError | WebSocketDisconnect) for error in group.exceptions)
            if not left:
                ends = [error for error in group.exceptions if isinstance(error, CloseConnection)]
                await self._connection.close(ends[0] if ends else _end_for(group.exceptions[0]))
            clear_tracebacks(group)
        finally:
            for utterance in self._utterances:  # that were never spoken
                utterance.charge.settle(0.0, failed=not left)
            self._pending_text.close()
            self._speaker = None  # its cancellation holds a frame that holds this session

    async def _speak(self) -> None:
        while True:
            self._check_draining()
            if self._utterances:
                self._service.api_keys.check(self._api_key, "speak")  # it may have ended since the last speech
                await self._utterances[0].run()
                self._spoken.appendleft(self._utterances.popleft().timeline)
            elif self._closing:
                raise CloseConnection(1000)
            else:
                self._wake_speaker.clear()
                await self._wake_speaker.wait()

    async def _watch(self) -> None:
        idle_s = self._service.config.live_idle_s
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            self._count_text()
            busy = self._connection.is_speaking
            if not self._utterances and not busy:
                self._check_draining()
            elif self._utterances and self._utterances[0] is self._open:
                self._open.give_slot_back()
            speaking = busy or any(utterance.text.ended.is_set() for utterance in self._utterances)
            if speaking or self._clock.unplayed_s:
                self._active_s = time.monotonic()
            elif time.monotonic() - self._active_s >= idle_s:
                message = f"the session was idle for {idle_s:g} s; connect again to continue"
                raise CloseConnection(4408, TimedOutError(message, code="idle_timeout"))

    def _check_draining(self) -> None:
        if self._service.draining:
            error = NotReadyError("the server is shutting down; connect again in a moment", retry_after_s=5.0)
            raise CloseConnection(1013, error)

    async def _read(self) -> None:
        self._connection = await self._connection.open()
        while True:
            try:
                message = await self._connection.receive()
                self._active_s = time.monotonic()
                await self._handle(message)
                self._bad_messages = 0
                # `receive` does not wait while messages are queued: a burst of them would hold the event loop.
                await asyncio.sleep(0)
            except (UnauthorizedError, MissingRoleError):
                raise
            except OscineError as error:
                self._active_s = time.monotonic()
                await self._refuse(error)

    async def _refuse(self, error: OscineError) -> None:
        reason = error.reason if isinstance(error, RefusedConfigError) else error
        self._service.api_keys.usage.refuse(self._api_key, reason)
        if reason is not error and self._plan is None:
            clear_tracebacks(error)  # they hold this session, which keeps the reason
            clear_tracebacks(reason)
            self._refused_config = reason
        await self._connection.send_error(api_error(reason))
        self._bad_messages += 1
        if self._bad_messages >= _MAX_BAD_MESSAGES:
            message = f"{self._bad_messages} messages in a row were refused; docs/api.md describes the messages"
            raise CloseConnection(1008, RequestError(message, code="too_many_errors"))

    async def _handle(self, message: ClientMessage) -> None:
        if self._closing and not isinstance(message, InputCancel | SessionClose):
            raise RequestError(f"{message.type} came after session.close; open another connection")
        if self._service.config.strict and isinstance(message, _LENIENT):
            message.check_strict()
        match message:
            case LiveConfig():
                try:
                    await self._configure(message)
                except OscineError as error:
                    raise RefusedConfigError(error) from None
            case InputText():
                await self._push(message.text)
            case InputTurn():
                await self._begin_turn(message)
            case InputCommit():
                await self._commit(message)
            case InputDone():
                if not self._open:
                    self._count_text(begins=True)
                    self._open = self._begin()
                self._end_text()
            case InputClear():
                if self._open:
                    self._open.clear_text()
            case SentenceEnd():
                if self._open:
                    self._open.end_sentence()
            case InputCancel():
                await self._cancel(message)
            case SessionClose():
                self._closing = True
                self._end_text()
                self._wake_speaker.set()

    async def _configure(self, config: LiveConfig) -> None:
        model = self._service.models.route(config.request, config.asked_model)
        plan = await self._connection.plan(model, config)
        resolve_request(plan.request, model.card)
        if config.timestamp_type:
            check_aligner(self._service.aligner, plan.request.language, "timestamp_type")
        asked = config.request()
        self._plan, self._refused_config = plan, None
        # A clip may have megabytes: its voice is in the plan.
        self._asked = replace(asked, voice=None) if isinstance(asked.voice, VoiceSource) else asked
        self._random_seeds = asked.seed in (None, RANDOM_SEED)
        several = self._service.models.several
        await self._connection.send(SessionReady(config, plan, model.name if several else None))

    @property
    def _settings(self) -> tuple[SpeechPlan, SpeechRequest] | None:
        return (self._plan, self._asked) if self._plan else None

    async def _begin_turn(self, message: InputTurn) -> None:
        """A refused turn takes its text along: nobody else must speak it."""
        self._refused_turn = True
        settings = self._open.settings if self._open else self._settings
        if settings is None:
            needed = "input.turn needs settings; send a session.config before the utterance begins"
            raise RequestError(needed, code="not_configured")
        index = self._open.turns if self._open else 0
        if index >= MAX_TURNS:
            raise RequestError(f"the utterance has {MAX_TURNS} turns (the maximum); end it with input.done")
        turn = await self._service.planner.live_turn(*settings, index, message.turn())
        text = message.text or ""
        utterance = self._utterance_for(text)  # a turn whose text is refused has not begun
        self._refused_turn = False
        utterance.begin_turn(turn)
        await self._give(utterance, text)

    async def _push(self, text: str) -> None:
        if not text:
            return
        if self._refused_turn:
            raise RequestError("this text was dropped, because its input.turn was refused", code="not_configured")
        await self._give(self._utterance_for(text), text)

    def _utterance_for(self, text: str) -> LiveUtterance:
        """The utterance that the text belongs to. Raises the reason why the text is refused."""
        try:
            check_characters(text)
        except RequestError as error:
            raise FieldError(str(error), param="text", code="bad_request") from None
        max_chars = self._service.config.max_text_chars
        pending_chars = self._pending_chars
        if pending_chars + len(text) > max_chars:
            raise TooMuchTextError(
                f"{pending_chars} characters are waiting to be spoken; {len(text)} more would exceed the limit of "
                f"{max_chars}. This piece was dropped: send it again later",
                param="text",
            )
        self._count_text(len(text), begins=self._open is None)
        utterance = self._open = self._open or self._begin()
        if text:
            utterance.charge.add(len(text))
        return utterance

    async def _give(self, utterance: LiveUtterance, text: str) -> None:
        step = _PUSH_NUMBERS if utterance.text.changes_words else _PUSH_CHARS
        for begin in range(0, len(text), step):
            utterance.push(text[begin : begin + step])
            await asyncio.sleep(0)

    def _count_text(self, more_chars: int = 0, *, begins: bool = False) -> None:
        """Counts what waits to be spoken, with an utterance that `begins`. Raises OverloadedError."""
        chars, utterances = self._pending_chars + more_chars, len(self._utterances) + begins
        self._pending_text.resize(_CHARACTER_BYTES * chars + _UTTERANCE_BYTES * utterances)

    @property
    def _pending_chars(self) -> int:
        return sum(utterance.pending_chars for utterance in self._utterances)

    async def _commit(self, message: InputCommit) -> None:
        """Speaks the text so far to its end. The utterance goes on."""
        chars = self._open.commit_text() if self._open else 0
        if not self._open or not chars:
            raise RequestError("there is no text to commit; send input.text first")
        committed = TextCommitted(self._open.index, message.commit_id, self._open.commits - 1, chars)
        await self._connection.send(committed)

    def _end_text(self) -> None:
        self._refused_turn = False
        if self._open:
            self._open.text.end()
        self._open = None

    def _begin(self) -> LiveUtterance:
        if len(self._utterances) > _MAX_QUEUED_UTTERANCES:
            message = f"{_MAX_QUEUED_UTTERANCES} utterances are queued (the maximum); send fewer at once"
            raise CloseConnection(1008, OverloadedError(message, retry_after_s=1.0, code="too_many_utterances"))
        plan = self._plan
        if plan and self._random_seeds:
            plan = replace(plan, request=replace(plan.request, seed=secrets.randbits(63)))
        for earlier in self._utterances:
            earlier.is_followed = True
        index, self._utterance_count = self._utterance_count, self._utterance_count + 1
        utterance = LiveUtterance(
            self._service, self._connection, self._clock, self._api_key, index, plan, self._asked, self._refused_config
        )
        self._utterances.append(utterance)
        self._wake_speaker.set()
        return utterance

    async def _cancel(self, message: InputCancel) -> None:
        """Stops all utterances, and reports how much of them was played. Audio is sent faster than it is played, so
        the listener may be hearing an utterance that was sent whole long ago."""
        index, count = message.utterance_index, self._utterance_count
        if index is not None and index >= count:
            known = f"this session has utterances 0 to {count - 1}" if count else "this session has none yet"
            error = f"there is no utterance {index}: {known}; leave the field out to stop all"
            raise FieldError(error, param="utterance_index")
        utterances, self._open, self._refused_turn = list(self._utterances), None, False
        for utterance in utterances:
            utterance.cancel()
        assert self._speaker
        self._speaker.cancel()
        timelines = [*(utterance.timeline for utterance in reversed(utterances)), *self._spoken]
        position = playback_position(timelines, self._clock.unplayed_s, index, message.played_s)
        await asyncio.wait({self._speaker})
        for utterance in utterances:
            await utterance.send_cancelled(position.played_s if utterance.timeline is position.timeline else 0.0)
        cancelled = SpeechCancelled(position.utterance_index, position.played_s, position.text)
        await self._connection.send(cancelled)
        self._utterances.clear()
        self._spoken.clear()
        self._clock.stop()
        self._speaker = self._tasks.create_task(self._speak())


def _end_for(error: Exception) -> CloseConnection:
    """The key may not speak any more, or something unexpected has happened."""
    return CloseConnection(1008 if isinstance(error, UnauthorizedError | MissingRoleError) else 1011, error)
