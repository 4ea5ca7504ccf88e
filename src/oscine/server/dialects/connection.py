"""A live session over another protocol: messages are translated on their way in, events on their way out.

client ─► receive: `_translate` ─► LiveSession ─► `send`, `send_error` ─► client

Keys, limits, idle time, back-pressure and cancelling are the session's, whatever the protocol is.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.types import Message
from starlette.websockets import WebSocket

from oscine.server.api.schemas import VoiceOptions, invalid_field
from oscine.server.http.errors import ApiError
from oscine.server.live.config import LiveConfig
from oscine.server.live.connection import ClientMessage, InputText, LiveConnection, parse_message
from oscine.server.service import Service

# Has no effect on the session, but shows that the client is there.
_NOTHING = InputText(type="input.text", text="")
_LIVE_ONLY = LiveConfig.model_fields.keys() - VoiceOptions.model_fields.keys()


class ForeignMessage(BaseModel):
    """Unknown fields are ignored, as the servers of these protocols do."""

    model_config = ConfigDict(extra="ignore", strict=True)


class ForeignConnection(LiveConnection, abc.ABC):
    kinds: ClassVar[Mapping[str, type[ForeignMessage]]]  # `type` of a message -> its fields

    def __init__(self, socket: WebSocket, service: Service) -> None:
        super().__init__(socket, service)
        self._translated: deque[ClientMessage] = deque()

    async def receive(self) -> ClientMessage:
        if not self._translated:
            await self._take_frame(await self._receive_frame())
        return self._translated.popleft()

    async def _take_frame(self, frame: Message) -> None:
        self._translated.extend(await self._translate(parse_message(frame, self.kinds)) or (_NOTHING,))

    @abc.abstractmethod
    async def _translate(self, message: Any) -> Sequence[ClientMessage]:
        """The same in the live protocol. May send events; raises ApiError or FieldError for a refused message."""

    async def send_error(self, error: ApiError, utterance_index: int | None = None) -> None:
        if utterance_index is None:
            self._translated.clear()  # a refused message has no other effects
        await self._send_error(error, utterance_index)

    @abc.abstractmethod
    async def _send_error(self, error: ApiError, utterance_index: int | None) -> None: ...


def live_config(fields: Mapping[str, Any], shared: Collection[str] = ()) -> LiveConfig:
    """Settings of a session in our names, without those of the live protocol alone, but for `shared` ones. Raises
    FieldError."""
    given = {name: value for name, value in fields.items() if name not in _LIVE_ONLY or name in shared}
    try:
        return LiveConfig.model_validate({**given, "type": "session.config"})
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None
