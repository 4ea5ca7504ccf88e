"""The live WebSocket protocol: JSON messages from the client, JSON events and binary audio to the client."""

from __future__ import annotations

import abc
import asyncio
import base64
import contextlib
import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from oscine.audio.formats import FormatName
from oscine.errors import RequestError
from oscine.server.api.renderers import (
    millisecond_words,
    missing_times,
    segment_fields,
    usage_fields,
    word_alignment,
    word_event,
)
from oscine.server.http.errors import ApiError, invalid_field
from oscine.server.http.logs import request_id
from oscine.server.http.websocket_limits import SUBPROTOCOL
from oscine.server.live.messages import (
    MESSAGES,
    ClientMessage,
    CloseConnection,
    InFile,
    InputText,
    LiveConfig,
    LiveEvent,
    LiveFile,
    OwnEvent,
    RefusedConfigError,
    SessionReady,
    SpeechCancelled,
    TextCommitted,
    UtteranceEnded,
    parse_message,
)
from oscine.server.schemas import VoiceOptions
from oscine.server.service import Service
from oscine.speech.events import Audio, Ended, SegmentEnded, Started, Words
from oscine.speech.models import ServedModel
from oscine.speech.plan import SpeechPlan, Split, WordForm

_MAX_REASON_BYTES = 120  # a close frame holds 123
_MAX_FRAME_BYTES = 2**20  # of audio: the default limit of Python's websockets
_CLOSE_TIMEOUT_S = 10.0  # for a client that does not read; on a busy machine others need seconds, too


class LiveConnection:
    """A client of a live session. A send raises ConnectionError or WebSocketDisconnect when the client is gone."""

    speaks_at_pauses = False  # a text that pauses is spoken to its end, even on a server with room
    default_format: FormatName = "pcm"
    default_config = LiveConfig.model_validate({"type": "session.config"})

    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket, self._service = socket, service
        self._unread: Message | None = None  # was read to choose the protocol
        self._is_own_client = False  # it chose our subprotocol
        self._own_events: Collection[str] = ()  # that the client asked for; the others are always sent
        self._chunks = self._chunk_start_ms = 0  # of the file, where audio is JSON

    def subprotocol(self, offered: Sequence[str]) -> str | None:
        self._is_own_client = SUBPROTOCOL in offered
        return SUBPROTOCOL if self._is_own_client else None

    async def open(self) -> LiveConnection:
        """Called once, when the key was accepted and before any message is read. Returns the connection to use."""
        return self

    @property
    def is_speaking(self) -> bool:
        """Whether it speaks beside its session, which is not idle then."""
        return False

    def unread(self, frame: Message) -> None:
        """Receives this frame next."""
        self._unread = frame

    async def plan(self, model: ServedModel, config: LiveConfig) -> SpeechPlan:
        """Settings of the client with the defaults of its protocol. Raises RequestError."""
        default = self._service.config.default_format or self.default_format
        plan = await self._service.plan(model, config, "", default)
        whole_files = self._sends_whole_files(config, plan)
        return replace(plan, split=self._split(config), whole_files=whole_files, words=self._word_form(config))

    def _split(self, config: LiveConfig) -> Split | None:
        """Returns what is a file of its own, or None for the whole utterance."""
        return config.split

    def _sends_whole_files(self, config: LiveConfig, plan: SpeechPlan) -> bool:
        """Whether each file is sent in one frame. As over HTTP, a file whose header states its length is sent when it
        is complete, unless the client asks for a stream."""
        if config.streams is not None:
            return not config.streams
        return plan.format.needs_length and not self._service.config.stream_wav

    def _word_form(self, config: LiveConfig) -> WordForm | None:
        if config.timestamp_type:
            return "at_end"
        if not config.word_timestamps:
            return None
        as_events = self._is_own_client or "audio.words" in (config.events or ())
        return "events" if as_events else "chunks"

    async def receive(self) -> ClientMessage:
        """Raises RequestError for a message that is refused, and WebSocketDisconnect."""
        return self._parse(await self._receive_frame())

    async def _receive_frame(self) -> Message:
        if self._unread:
            frame, self._unread = self._unread, None
            return frame
        frame = await self._socket.receive()
        if frame["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(frame["code"])
        return frame

    def _parse(self, frame: Message) -> ClientMessage:
        try:
            return parse_message(frame, MESSAGES)
        except RequestError as error:
            # Broken JSON may be a configuration too. In a text, the quotes would be escaped.
            is_config = '"session.config"' in (frame.get("text") or "")
            raise RefusedConfigError(error) if is_config else error from None

    async def send(self, event: LiveEvent) -> None:
        match event:
            case SessionReady():
                self._own_events = event.config.events or ()
                await self._send_event("session.ready", **ready_fields(event))
            case InFile(file, Started() as start):
                self._chunks, self._chunk_start_ms = 0, 0
                await self._send_json("audio.start", **self._start_fields(file, start))
            case InFile(file, Audio(data=data)) if file.plan.words == "chunks":
                await self._send_chunk(file, data)
            case InFile(_, Audio(data=data)):
                await self._send_binary(data)
            case InFile(file, SegmentEnded() as segment):
                await self._send_event("audio.segment", **_segment_fields(file, segment))
            case InFile(file, Words() as words):
                await self._send_event("audio.words", utterance_index=file.utterance, **word_event(words))
            case InFile(file, Ended() as end):
                if file.plan.words == "chunks" and not end.cut_off:
                    await self._send_last_chunk(file)
                await self._send_json("audio.done", **self._done_fields(file, end))
            case UtteranceEnded():
                await self._send_json("session.done", utterance_index=event.utterance, total_sentences=event.files)
            case TextCommitted():
                place = {"utterance_index": event.utterance, "commit_id": event.commit_id}
                counts = {"sentence_index": event.commit, "chars_committed": event.chars}
                await self._send_json("input.committed", **place, **counts)
            case SpeechCancelled():
                played = {"played_s": round(event.played_s, 3), "spoken_text": event.spoken_text}
                await self._send_json("input.cancelled", utterance_index=event.utterance, **played)

    def _start_fields(self, file: LiveFile, start: Started) -> dict[str, Any]:
        plan = file.plan
        return {
            "utterance_index": file.utterance,
            "sentence_index": file.index,
            "sentence_text": start.text.strip() if plan.split else start.text,
            "format": plan.format.name,
            "sample_rate": plan.out_rate_hz,
            "channels": 1,
            "seed": plan.seed,
            **({} if start.remembered is None else {"cache": "hit" if start.remembered else "miss"}),
            **({"word_timestamps": True} if plan.words == "chunks" else {}),
        }

    def _done_fields(self, file: LiveFile, end: Ended) -> dict[str, Any]:
        timed = file.plan.words == "at_end" and not end.cut_off
        return {
            "utterance_index": file.utterance,
            "sentence_index": file.index,
            "finish_reason": end.finish_reason,
            "error": end.finish_reason == "error",
            "total_bytes": file.size,
            "audio_seconds": round(file.duration_s, 3),
            **({} if end.cut_off else {"usage": usage_fields(end.usage)}),
            **({} if file.spoken_text is None else {"spoken_text": file.spoken_text}),
            **({"timestamp_info": word_alignment(file.words)} if timed else {}),
        }

    async def _send_chunk(
        self, file: LiveFile, data: bytes, timestamps: list[dict[str, Any]] | None = None, warning: str | None = None
    ) -> None:
        """Audio as JSON: vLLM-Omni's form of a stream with timestamps, which come with the last chunk."""
        end_ms = round(1000 * file.duration_s)
        await self._send_json(
            "audio.chunk",
            utterance_index=file.utterance,
            sentence_index=file.index,
            chunk_id=self._chunks,
            chunk_start_ms=self._chunk_start_ms,
            chunk_end_ms=end_ms,
            sample_rate=file.plan.out_rate_hz,
            audio_b64=base64.b64encode(data).decode(),
            timestamps=timestamps,
            **({"warning": warning} if warning else {}),
        )
        self._chunks, self._chunk_start_ms = self._chunks + 1, end_ms

    async def _send_last_chunk(self, file: LiveFile) -> None:
        warning = missing_times(file.words)
        self._chunk_start_ms = 0  # the times are those of the whole file
        await self._send_chunk(file, b"", None if warning else millisecond_words(file.words), warning)

    async def send_error(self, error: ApiError, utterance_index: int | None = None) -> None:
        optional = {"utterance_index": utterance_index, "retry_after_s": error.retry_after_s}
        given = {name: value for name, value in optional.items() if value is not None}
        # vLLM-Omni's clients read `message`, OpenAI's read `error`.
        await self._send_json("error", message=error.message, error=error.body, **given)

    async def _send_event(self, kind: OwnEvent, **fields: Any) -> None:
        """Sends an event that a client of vLLM-Omni may refuse, if this one asked for it."""
        if self._is_own_client or kind in self._own_events:
            await self._send_json(kind, **fields)

    async def _send_json(self, kind: str, **fields: Any) -> None:
        await self._send_frame({"type": "websocket.send", "text": json.dumps({"type": kind, **fields})})

    async def _send_binary(self, data: bytes) -> None:
        for begin in range(0, len(data), _MAX_FRAME_BYTES):
            await self._send_frame({"type": "websocket.send", "bytes": data[begin : begin + _MAX_FRAME_BYTES]})

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

    async def _send_frame(self, message: Message) -> None:
        stalled_s = self._service.config.stalled_s
        try:
            async with asyncio.timeout(stalled_s):
                await self._socket.send(message)
        except TimeoutError:
            raise ConnectionResetError(f"the client read no audio for {stalled_s:g} s") from None
        except RuntimeError as error:
            # The server closed the socket, for example after a broken frame or an unanswered ping.
            raise WebSocketDisconnect(1006) from error


def ready_fields(event: SessionReady) -> dict[str, Any]:
    plan = event.plan
    return {
        "request_id": request_id.get(),
        "response_format": plan.format.name,
        "sample_rate": plan.out_rate_hz,
        **({"model": event.model} if event.model else {}),
        **notes_of(plan),
    }


def notes_of(plan: SpeechPlan) -> dict[str, Any]:
    """What a client should know about its settings."""
    return {
        **({"ignored_fields": plan.ignored_fields} if plan.ignored_fields else {}),
        **({"warning": "; ".join(plan.field_warnings)} if plan.field_warnings else {}),
    }


def _segment_fields(file: LiveFile, segment: SegmentEnded) -> dict[str, Any]:
    of_turn = segment.turn.warning if segment.turn else None
    warning = "; ".join(filter(None, (of_turn, file.plan.warning_about(segment.text))))
    fields = {"utterance_index": file.utterance, **segment_fields(segment)}
    return {**fields, **({"warning": warning} if warning else {})}


# --- Other protocols: messages are translated on their way in, events on their way out.

# Has no effect on the session, but shows that the client is there.
_NOTHING = InputText(type="input.text", text="")
_LIVE_ONLY = LiveConfig.model_fields.keys() - VoiceOptions.model_fields.keys()


class ForeignMessage(BaseModel):
    """Unknown fields are ignored, as the servers of these protocols do."""

    model_config = ConfigDict(extra="ignore", strict=True)


class ForeignConnection(LiveConnection, abc.ABC):
    """A live session over another protocol: client ─► receive: `_translate` ─► LiveSession ─► `send`, `send_error`.

    Keys, limits, idle time, back-pressure and cancelling are the session's, whatever the protocol is."""

    kinds: ClassVar[Mapping[str, type[ForeignMessage]]]  # `type` of a message -> its fields

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        self._translated: deque[ClientMessage] = deque()

    async def receive(self) -> ClientMessage:
        if not self._translated:
            await self._take_frame(await self._receive_frame())
        return self._translated.popleft()

    async def _take_frame(self, frame: Message) -> None:
        self._translated.extend(await self._translate(self._parse_frame(frame)) or (_NOTHING,))

    def _parse_frame(self, frame: Message) -> Any:
        return parse_message(frame, self.kinds)

    @abc.abstractmethod
    async def _translate(self, message: Any) -> Sequence[ClientMessage]:
        """Returns the message in the live protocol. May send events. Raises RequestError."""

    async def send_error(self, error: ApiError, utterance_index: int | None = None) -> None:
        if utterance_index is None:
            self._translated.clear()  # a refused message has no other effects
        await self._send_error(error, utterance_index)

    @abc.abstractmethod
    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None: ...


def live_config(fields: Mapping[str, Any], shared: Collection[str] = ()) -> LiveConfig:
    """Makes the settings of a session from fields in our names. Those that only the live protocol has are dropped,
    except `shared` ones. Raises FieldError."""
    given = {name: value for name, value in fields.items() if name not in _LIVE_ONLY or name in shared}
    try:
        return LiveConfig.model_validate({**given, "type": "session.config"})
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None
