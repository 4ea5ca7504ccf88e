"""WS /api-ws/v1/realtime: the realtime protocol of Qwen's hosted speech models, which their SDK `dashscope` speaks.

A response is an utterance of the live session. In the mode `server_commit`, text is spoken as it arrives, and a commit
or the end of the session ends the response. In the mode `commit`, text is kept until it is committed.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field
from starlette.websockets import WebSocket

from oscine.errors import FieldError, RequestError
from oscine.server.api.renderers import usage_fields
from oscine.server.http.errors import ApiError
from oscine.server.live.connection import ForeignConnection, ForeignMessage, LiveConnection, live_config, notes_of
from oscine.server.live.messages import (
    ClientMessage,
    CloseConnection,
    InFile,
    InputCancel,
    InputClear,
    InputDone,
    InputText,
    LiveEvent,
    RefusedConfigError,
    SessionClose,
    SessionReady,
    SpeechCancelled,
    TooMuchTextError,
    UtteranceEnded,
)
from oscine.server.service import Service
from oscine.speech.events import Audio, Ended, SegmentEnded, Started
from oscine.speech.plan import SpeechPlan
from oscine.speech.voice_names import DEFAULT_VOICE

Mode = Literal["server_commit", "commit"]
_NOT_SHOWN = ("ref_audio", "references", "speaker_embedding")  # settings of ours that are too large for an event
_STATUS = {"cancelled": "cancelled", "error": "failed", "length": "incomplete"}  # by finish reason; else completed


class CloudUpdate(ForeignMessage):
    """Settings in the cloud's names; they add to earlier ones."""

    type: Literal["session.update"]
    session: dict[str, Any] = Field(default_factory=dict)


class CloudText(ForeignMessage):
    """The next piece of text."""

    type: Literal["input_text_buffer.append"]
    text: str


class CloudCommit(ForeignMessage):
    """Ends the text of the response."""

    type: Literal["input_text_buffer.commit"]


class CloudClear(ForeignMessage):
    """Drops the text that is not being spoken yet."""

    type: Literal["input_text_buffer.clear"]


class CloudCancel(ForeignMessage):
    """Stops the response and those that wait."""

    type: Literal["response.cancel"]


class CloudFinish(ForeignMessage):
    """Speaks the rest, and closes the connection."""

    type: Literal["session.finish"]


class _Response:
    """What the client was told about an utterance."""

    def __init__(self, voice: str) -> None:
        self.id, self.item_id = f"resp_{secrets.token_hex(12)}", f"item_{secrets.token_hex(12)}"
        self._voice = voice
        self.chars = 0

    @property
    def part(self) -> dict[str, Any]:
        return {"response_id": self.id, "item_id": self.item_id, "output_index": 0, "content_index": 0}

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [{"type": "audio", "transcript": ""}]
        about = {"id": self.item_id, "object": "realtime.item", "type": "message", "role": "assistant"}
        return {**about, "status": status, "content": content}

    def about(self, status: str, **fields: Any) -> dict[str, Any]:
        about = {"id": self.id, "object": "realtime.response", "conversation_id": "", "status": status}
        output = [] if status == "in_progress" else [self.item(status)]
        return {**about, "modalities": ["text", "audio"], "voice": self._voice, "output": output, **fields}


class DashScopeConnection(ForeignConnection):
    speaks_at_pauses = True
    kinds: ClassVar = {
        "session.update": CloudUpdate,
        "input_text_buffer.append": CloudText,
        "input_text_buffer.commit": CloudCommit,
        "input_text_buffer.clear": CloudClear,
        "response.cancel": CloudCancel,
        "session.finish": CloudFinish,
    }

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        self._max_text_chars = service.config.max_text_chars
        self._session_id = f"sess_{secrets.token_hex(12)}"
        self._event_numbers = count(1)
        model = socket.query_params.get("model", "")
        self._settings: dict[str, Any] = {"mode": "server_commit", **({"model": model} if model else {})}
        self._update: dict[str, Any] | None = None  # settings that the session has not accepted yet
        self._configured = False  # the client has sent settings, or text without any
        self._kept, self._kept_chars = list[str](), 0  # in the mode `commit`: text until it is committed
        self._finished = self._cancelling = self._failed = False
        self._response: _Response | None = None  # between response.created and response.done

    async def open(self) -> LiveConnection:
        form = self._service.config.default_format or self.default_format
        about = {"voice": DEFAULT_VOICE, "response_format": form, **self._about_session()}
        await self._send_json("session.created", session=about)
        return self

    # --- from the client ---

    async def _translate(self, message: Any) -> Sequence[ClientMessage]:
        if self._finished and not isinstance(message, CloudCancel | CloudFinish):
            raise RequestError(f"{message.type} came after session.finish; open another connection")
        match message:
            case CloudUpdate():
                return [self._updated(message.session)]
            case CloudText():
                return self._appended(message.text)
            case CloudCommit():
                await self._send_json("input_text_buffer.committed", item_id=f"item_{secrets.token_hex(12)}")
                return [*self._kept_text(), InputDone(type="input.done")]
            case CloudClear():
                self._take_kept()
                await self._send_json("input_text_buffer.cleared")
                return [InputClear()]
            case CloudCancel():
                self._cancelling = True
                return [InputCancel(type="input.cancel", played_s=None, utterance_index=None)]
            case CloudFinish():
                self._finished = True
                return [*self._kept_text(), SessionClose(type="session.close")]
        raise AssertionError(message)

    def _updated(self, given: dict[str, Any]) -> ClientMessage:
        settings = {**self._settings, **given}
        if settings["mode"] not in get_args(Mode):
            raise RefusedConfigError(FieldError("mode must be server_commit or commit", param="session.mode"))
        self._configured = True
        try:
            given = own_fields({name: settings[name] for name in settings if name != "mode"})
            config = live_config(given)
        except RequestError as error:
            error.param = _setting_name(error.param)
            raise RefusedConfigError(error) from None
        self._update = settings
        return config

    def _appended(self, text: str) -> Sequence[ClientMessage]:
        if self._settings["mode"] == "server_commit":
            return [*self._first_settings(), InputText(type="input.text", text=text)]
        if self._kept_chars + len(text) > self._max_text_chars:
            message = f"{self._kept_chars} characters wait for a commit; {len(text)} more would exceed the limit of "
            message += f"{self._max_text_chars}. This piece was dropped: commit first"
            raise TooMuchTextError(message, param="text")
        if text:
            self._kept.append(text)
            self._kept_chars += len(text)
        return []

    def _kept_text(self) -> Sequence[ClientMessage]:
        text = self._take_kept()
        return [*self._first_settings(), InputText(type="input.text", text=text)] if text else []

    def _take_kept(self) -> str:
        text = "".join(self._kept)
        self._kept, self._kept_chars = [], 0
        return text

    def _first_settings(self) -> Sequence[ClientMessage]:
        """Returns the settings of a client that has sent none: the model in the URL."""
        if self._configured:
            return []
        config = self._updated({})
        self._update = None  # the client did not ask for it
        return [config]

    # --- to the client ---

    async def send(self, event: LiveEvent) -> None:
        match event:
            case SessionReady():
                await self._accept_settings(event.plan)
            case InFile(_, Started()):
                await self._begin_response()
            case InFile(_, Audio(data=data)):
                assert self._response
                delta = base64.b64encode(data).decode()
                await self._send_json("response.audio.delta", **self._response.part, delta=delta)
            case InFile(_, SegmentEnded(text=text)):
                if self._response:
                    self._response.chars += len(text)
            case InFile(_, Ended() as end):
                await self._end_response(end.finish_reason, {} if end.cut_off else usage_fields(end.usage))
            case UtteranceEnded():
                if not event.files:  # no file started, so none ended either
                    await self._begin_response()
                    reason = "cancelled" if self._cancelling else "error" if self._failed else "stop"
                    await self._end_response(reason, {})
                self._failed = False
            case SpeechCancelled():
                self._cancelling = False

    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None:
        if utterance_index is not None:
            self._failed = True
        elif self._update:
            self._update, error.param = None, _setting_name(error.param)
        if error.code == "not_configured":
            error.message = error.message.replace("session.config", "session.update")
        retry = {} if error.retry_after_s is None else {"retry_after_s": error.retry_after_s}
        await self._send_json("error", error={**error.body, **retry})

    async def _send_end(self, end: CloseConnection) -> None:
        if end.error is None:
            await self._send_json("session.finished")
        await super()._send_end(end)

    async def _accept_settings(self, plan: SpeechPlan) -> None:
        if self._update is None:
            return
        ignored = sorted(map(cloud_name, plan.ignored_fields))
        # Ignored ones are not kept: a client could send any number of them.
        self._settings = {name: value for name, value in self._update.items() if name not in ignored}
        self._update = None
        about = {**self._about_session(), "sample_rate": plan.out_rate_hz, **notes_of(plan), "ignored_fields": ignored}
        await self._send_json("session.updated", session=about)

    def _about_session(self) -> dict[str, Any]:
        shown = {name: value for name, value in self._settings.items() if name not in _NOT_SHOWN}
        return {"id": self._session_id, "object": "realtime.session", **shown}

    async def _begin_response(self) -> None:
        response = self._response = _Response(str(self._settings.get("voice") or DEFAULT_VOICE))
        part = {"type": "audio", "text": ""}
        await self._send_json("response.created", response=response.about("in_progress"))
        await self._send_json(
            "response.output_item.added", response_id=response.id, output_index=0, item=response.item("in_progress")
        )
        await self._send_json("response.content_part.added", **response.part, part=part)

    async def _end_response(self, reason: str, usage: dict[str, int]) -> None:
        response, status = self._response, _STATUS.get(reason, "completed")
        assert response
        await self._send_json("response.audio.done", **response.part)
        await self._send_json("response.content_part.done", **response.part, part={"type": "audio", "text": ""})
        await self._send_json(
            "response.output_item.done", response_id=response.id, output_index=0, item=response.item(status)
        )
        counts = {"characters": response.chars, **usage}
        about = response.about(status, status_details={"finish_reason": reason}, usage=counts)
        await self._send_json("response.done", response=about)
        self._response = None

    async def _send_json(self, kind: str, **fields: Any) -> None:
        event = {"event_id": f"event_{self._session_id[5:]}_{next(self._event_numbers)}", "type": kind, **fields}
        await self._send_frame({"type": "websocket.send", "text": json.dumps(event)})


def _setting_name(param: str | None) -> str | None:
    """Returns the client's name of a setting."""
    return param and f"session.{cloud_name(param)}"


# Settings of Qwen's hosted speech models as fields of ours.


_NAMES = {"text": "input", "language_type": "language", "speech_rate": "speed", "enable_tn": "normalize"}
_OWN_VOLUME = 50
# Settings count as not given at these values, which ask for nothing.
_NEUTRAL = {"volume": _OWN_VOLUME, "pitch_rate": 1, "optimize_instructions": False}


def own_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Renames settings of the cloud to fields of ours. Those that are not ours keep their names."""
    asked = {name: value for name, value in settings.items() if name not in _NEUTRAL or value != _NEUTRAL[name]}
    if "format" in asked:  # of the HTTP call
        asked.setdefault("response_format", asked.pop("format"))
    if "volume" in asked:
        asked["volume"] = _volume(asked["volume"])
    return {_NAMES.get(name, name): value for name, value in asked.items()}


def _volume(given: Any) -> float:
    """Half of the largest volume is the voice's own."""
    if isinstance(given, int | float) and 0 <= given <= 2 * _OWN_VOLUME:
        return given / _OWN_VOLUME
    raise FieldError(f"volume must be a number from 0 to 100, got {repr(given)[:40]}", param="volume")


def cloud_name(field: str) -> str:
    """The cloud's name of one of our fields."""
    return next((name for name, own in _NAMES.items() if own == field), field)
