"""What every request passes on its way in and out: its id, its key, the limit of its body, its line in the log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oscine.server.errors import ApiError, error_response
from oscine.server.logs import facts, request_id
from oscine.server.service import Service

_log = logging.getLogger(__name__)
_ID = re.compile(r"[\x21-\x7e]{1,128}")
# The page runs no script but its own, whatever text it is made to show.
_SECURITY = {
    "content-security-policy": (
        "default-src 'self'; media-src 'self' blob:; connect-src 'self' ws: wss:; img-src 'self' data: blob:"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def guarded(path: str) -> bool:
    """Whether an API key is asked for: everything but the page, the documentation and the signs of life."""
    return path.startswith("/v1") or path == "/metrics"


class Gate:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        own_id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        token = request_id.set(own_id)
        scope.setdefault("state", {})["request_id"] = own_id
        try:
            if scope["type"] == "http":
                await self._http(scope, receive, send, own_id)
            elif self._foreign(scope):
                await send({"type": "websocket.close", "code": 1008})  # before it was accepted: a 403
            else:
                await self._app(scope, receive, send)
        finally:
            request_id.reset(token)

    async def _http(self, scope: Scope, receive: Receive, send: Send, own_id: str) -> None:
        begun_s, status = time.monotonic(), 499  # until another one is sent
        bodiless = scope["method"] == "HEAD"

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=message["headers"])
                headers["x-request-id"] = own_id
                headers.update(_SECURITY)
                message["headers"] = headers.raw
            elif bodiless:
                message["body"] = b""
            await send(message)

        try:
            if scope["method"] not in ("GET", "HEAD", "OPTIONS") and self._foreign(scope):
                raise ApiError(403, "web pages of other origins may not ask here, unless cors_origins names theirs")
            scope["state"]["api_key"] = self._key(scope)
            # What can be got can be asked for its head.
            inner = {**scope, "method": "GET"} if bodiless else scope
            await self._app(inner, self._bounded(scope, receive), send_marked)
        except ApiError as error:
            self._service.metrics.refused(scope["path"], error.status)
            await error_response(error)(scope, receive, send_marked)
        finally:
            level = logging.INFO if scope["path"].startswith("/v1") else logging.DEBUG
            taken_ms = round(1000 * (time.monotonic() - begun_s), 1)
            path = quote(scope["path"])  # as one word, whatever is in it
            _log.log(level, "%s %s", scope["method"], path, extra=facts(status=status, ms=taken_ms))

    def _foreign(self, scope: Scope) -> bool:
        """Asked by another site's page, in the browser of somebody who reaches this server; programs send no Origin."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is None or {origin, "*"} & set(self._service.config.cors_origins):
            return False
        return origin.partition("://")[2] != headers.get("host")

    def _key(self, scope: Scope) -> str:
        if not guarded(scope["path"]) or scope["method"] == "OPTIONS":
            return ""
        return self._service.access.key_of(Headers(scope=scope).get("authorization"))

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Counts the body as it comes: its stated length is looked at first, but may be missing or wrong."""
        most = self._service.config.max_body_bytes
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdecimal() and int(stated) > most:
            raise _too_large(most)
        taken = 0

        async def receive_counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > most:
                raise _too_large(most)
            return message

        return receive_counted


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most / 2**20:.0f} MiB, which is the limit; send less at once")
