"""The WebSockets, and endpoints of other servers' protocols. A WebSocket is a live session, with a connection that
translates where the client speaks another protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, WebSocket

from oscine.server.dialects.dashscope import DashScopeConnection
from oscine.server.dialects.dashscope_http import dashscope_routes
from oscine.server.dialects.kept_files import kept_file_routes
from oscine.server.dialects.nari import NariConnection
from oscine.server.dialects.sglang_omni import SglangOmniConnection
from oscine.server.live.session import LiveSession
from oscine.server.service import Service


def realtime_routes(service: Service, errors: Mapping[int | str, dict[str, Any]]) -> APIRouter:
    """`errors` describe the statuses for the OpenAPI document."""
    router = APIRouter()
    router.include_router(dashscope_routes(service, errors))
    router.include_router(kept_file_routes(service.kept_files, service.config.stalled_s))

    @router.websocket("/v1/audio/speech/stream")
    async def live(socket: WebSocket) -> None:
        await LiveSession(socket, service, SglangOmniConnection(socket, service)).run()

    @router.websocket("/api-ws/v1/realtime")
    async def dashscope(socket: WebSocket) -> None:
        await LiveSession(socket, service, DashScopeConnection(socket, service)).run()

    @router.websocket("/v1/audio/speech/ws")
    async def nari(socket: WebSocket) -> None:
        await LiveSession(socket, service, NariConnection(socket, service)).run()

    return router
