"""Endpoints of other servers' protocols. The WebSockets are live sessions with a connection that translates."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from oscine.server.live.session import LiveSession
from oscine.server.realtime.dashscope import DashScopeConnection
from oscine.server.realtime.dashscope_http import dashscope_routes
from oscine.server.realtime.nari import NariConnection
from oscine.server.service import Service


def realtime_routes(service: Service) -> APIRouter:
    router = APIRouter()
    router.include_router(dashscope_routes(service))

    @router.websocket("/api-ws/v1/realtime")
    async def dashscope(socket: WebSocket) -> None:
        await LiveSession(socket, service, DashScopeConnection(socket, service)).run()

    @router.websocket("/v1/audio/speech/ws")
    async def nari(socket: WebSocket) -> None:
        await LiveSession(socket, service, NariConnection(socket, service)).run()

    return router
