"""The live WebSocket protocol: JSON messages from the client, JSON events and binary audio to the client."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from oscine.audio.formats import FormatName
from oscine.errors import FieldError, RequestError, shown_name, unknown_choice
from oscine.server.api.renderers import (
    millisecond_words,
    missing_times,
    segment_fields,
    usage_fields,
    word_alignment,
    word_event,
)
from oscine.server.api.schemas import LenientModel, StrictModel, invalid_field
from oscine.server.http.access import SUBPROTOCOL
from oscine.server.http.errors import ApiError, api_error
from oscine.server.http.json_body import parse_json
from oscine.server.http.logs import request_id
from oscine.server.http.websocket_protocol import MAX_MESSAGE_BYTES
from oscine.server.live.config import LiveConfig, OwnEvent
from oscine.server.live.events import (
    InFile,
    LiveEvent,
    LiveFile,
    SessionReady,
    SpeechCancelled,
    TextCommitted,
    UtteranceEnded,
)
from oscine.server.service import Service
from oscine.speech.capabilities import unsupported_script
from oscine.speech.events import Audio, Ended, SegmentEnded, Started, Words
from oscine.speech.models import ServedModel
from oscine.speech.plan import SpeechPlan, WordForm

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

    def unread(self, frame: Message) -> None:
        """Receives this frame next."""
        self._unread = frame

    async def plan(self, model: ServedModel, config: LiveConfig) -> SpeechPlan:
        """Settings of the client with the defaults of its protocol. Raises ApiError or RequestError."""
        default = self._service.config.default_format or self.default_format
        plan = await self._service.plan(model, config, "", default)
        whole_files = self._sends_whole_files(config, plan)
        return replace(plan, split=config.split, whole_files=whole_files, words=self._word_form(config))

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
        """Raises ApiError or RequestError for a message that is refused, and WebSocketDisconnect."""
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
        except (ApiError, RequestError) as error:
            # Broken JSON may be a configuration too. In a text, the quotes would be escaped.
            is_config = '"session.config"' in (frame.get("text") or "")
            raise RefusedConfigError.of(error) if is_config else error from None

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
            **({"word_timestamps": True} if plan.words == "chunks" else {}),
        }

    def _done_fields(self, file: LiveFile, end: Ended) -> dict[str, Any]:
        timed = file.plan.words == "at_end" and not end.cut_off
        words = [word for segment in file.words for word in segment.words]
        return {
            "utterance_index": file.utterance,
            "sentence_index": file.index,
            "finish_reason": end.finish_reason,
            "error": end.finish_reason == "error",
            "total_bytes": file.size,
            "audio_seconds": round(file.duration_s, 3),
            **({} if end.cut_off else {"usage": usage_fields(end.usage)}),
            **({} if file.spoken_text is None else {"spoken_text": file.spoken_text}),
            **({"timestamp_info": word_alignment(words)} if timed else {}),
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
        words = [word for segment in file.words for word in segment.words]
        self._chunk_start_ms = 0  # the times are those of the whole file
        await self._send_chunk(file, b"", None if warning else millisecond_words(words), warning)

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
        **({"ignored_fields": plan.ignored_fields} if plan.ignored_fields else {}),
        **({"warning": "; ".join(plan.field_warnings)} if plan.field_warnings else {}),
    }


def _segment_fields(file: LiveFile, segment: SegmentEnded) -> dict[str, Any]:
    warning = unsupported_script(segment.text, file.plan.model.card)
    fields = {"utterance_index": file.utterance, **segment_fields(segment)}
    return {**fields, **({"warning": warning} if warning else {})}


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
