"""The WebSockets, and endpoints of other servers' protocols. A WebSocket is a live session, with a connection that
translates where the client speaks another protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Response, WebSocket
from starlette.types import Message

from oscine.errors import RequestError
from oscine.server.dialects.dashscope import DashScopeConnection
from oscine.server.dialects.dashscope_http import dashscope_routes
from oscine.server.dialects.elevenlabs import MULTI_PATH, PATH, ElevenLabsConnection, MultiContextConnection
from oscine.server.dialects.elevenlabs_http import elevenlabs_routes, is_elevenlabs, refusal
from oscine.server.dialects.nari import NariConnection
from oscine.server.dialects.sglang_omni import SglangOmniConnection
from oscine.server.dialects.vllm_omni import VllmOmniConnection, is_vllm_omnis
from oscine.server.http.errors import ApiError, error_response
from oscine.server.http.json_body import parse_json
from oscine.server.http.websocket_limits import MAX_MESSAGE_BYTES, SUBPROTOCOL
from oscine.server.kept_files import kept_file_routes
from oscine.server.live.connection import LiveConnection
from oscine.server.live.live_session import LiveSession
from oscine.server.service import Service

_TELLING = ('"session"', '"task_type"', '"streaming_mode"')  # fields of a first message that another protocol may have


def realtime_routes(service: Service, errors: Mapping[int | str, dict[str, Any]]) -> APIRouter:
    """`errors` describe the statuses for the OpenAPI document."""
    router = APIRouter()
    for dialect in (
        dashscope_routes(service, errors),
        elevenlabs_routes(service, errors),
        kept_file_routes(service.kept_files, service.config.stalled_s),
    ):
        router.routes.extend(dialect.routes)

    @router.websocket("/v1/audio/speech/stream")
    async def live(socket: WebSocket) -> None:
        await LiveSession(socket, service, _stream_connection(socket, service)).run()

    @router.websocket("/api-ws/v1/realtime")
    async def dashscope(socket: WebSocket) -> None:
        await LiveSession(socket, service, DashScopeConnection(socket, service)).run()

    @router.websocket("/v1/audio/speech/ws")
    async def nari(socket: WebSocket) -> None:
        await LiveSession(socket, service, NariConnection(socket, service)).run()

    @router.websocket(PATH)
    async def elevenlabs(socket: WebSocket) -> None:
        await LiveSession(socket, service, ElevenLabsConnection(socket, service)).run()

    @router.websocket(MULTI_PATH)
    async def elevenlabs_contexts(socket: WebSocket) -> None:
        connection = MultiContextConnection(socket, service)
        try:
            await LiveSession(socket, service, connection).run()
        finally:
            await connection.cancel()

    return router


def refusal_at(path: str, error: ApiError) -> Response:
    """The response to an error, in the form of the protocol that this path belongs to."""
    return refusal(error) if is_elevenlabs(path) else error_response(error)


def _stream_connection(socket: WebSocket, service: Service) -> LiveConnection:
    if SUBPROTOCOL in socket.scope["subprotocols"]:
        return LiveConnection(socket, service)
    if service.config.live_protocol == "sglang-omni":
        return SglangOmniConnection(socket, service)
    return _UndecidedConnection(socket, service)


class _UndecidedConnection(LiveConnection):
    """Several protocols share a path: the first message chooses one."""

    async def open(self) -> LiveConnection:
        frame = await self._receive_frame()
        chosen = protocol_of(frame)(self._socket, self._service)
        chosen.unread(frame)
        return chosen


def protocol_of(frame: Message) -> type[LiveConnection]:
    text = frame.get("text") or ""
    if len(text) > MAX_MESSAGE_BYTES or not any(name in text for name in _TELLING):
        return LiveConnection
    try:
        fields = parse_json(text.encode(), what="message")
    except RequestError:
        return LiveConnection  # which says what is wrong
    if not isinstance(fields, dict) or fields.get("type") != "session.config":
        return LiveConnection
    if isinstance(fields.get("session"), dict):
        return SglangOmniConnection
    return VllmOmniConnection if is_vllm_omnis(fields) else LiveConnection
