"""Middleware for every request: request id, API key, checks of host and origin, body limits, security headers, access
log."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from uvicorn.protocols.utils import ClientDisconnected

from oscine.errors import NotAllowedError, clear_tracebacks, shown_name
from oscine.process.resources import Owner, current_owner
from oscine.server.dialects.routes import refusal_at
from oscine.server.http.api_keys import role_needed
from oscine.server.http.connections import client_network
from oscine.server.http.errors import api_error, error_response
from oscine.server.http.json_body import RequestBody
from oscine.server.http.logs import client_address, key_name, log_fields, request_id
from oscine.server.kept_files import FILES_PATH
from oscine.server.service import Service
from oscine.speech.clips import matches_host, without_dot

_log = logging.getLogger(__name__)
_NOT_STARTED = 499  # logged if the client left before the response
_OPEN_WEBUI = "/open-webui"  # before /v1 in the base URL of Open WebUI's settings
_ID = re.compile(r"[\x21-\x7e]{1,128}")
# The playground runs only its own scripts, whatever text it displays.
_SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; media-src 'self' blob:; connect-src 'self' ws: wss:; img-src 'self' data: blob:; "
        b"frame-ancestors 'self'; base-uri 'self'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_OWN_NAMES = {b"x-request-id", *(name for name, _ in _SECURITY_HEADERS)}


def needs_api_key(path: str) -> bool:
    """Whether a request needs a key: all but the playground, the documentation and the health checks."""
    return path.startswith(("/v1", "/v2")) or path == "/metrics"


def _for_open_webui(scope: Scope) -> Scope:
    """Asks for objects in `voices`, which Open WebUI needs and cannot ask for; all other paths are as below /v1."""
    path = scope["path"].removeprefix(_OPEN_WEBUI)
    return {**scope, "path": path, **({"query_string": b"format=objects"} if path == "/v1/audio/voices" else {})}


class RequestMiddleware:
    """`direct` are applications by method and path that are called without the router."""

    def __init__(
        self, app: ASGIApp, service: Service, direct: Mapping[tuple[str, str], ASGIApp] = MappingProxyType({})
    ) -> None:
        self._app, self._service, self._direct = app, service, direct
        config = service.config
        self._hosts = AllowedHosts(config.host, config.allowed_hosts, has_keys=config.needs_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith(f"{_OPEN_WEBUI}/v1/"):
            scope = _for_open_webui(scope)
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        own_id = given_id if _ID.fullmatch(given_id) else secrets.token_hex(8)
        token = request_id.set(own_id)
        key_name.set(None)
        address = scope["client"][0] if scope.get("client") else None
        client_address.set(address)
        current_owner.set(Owner(address=client_network(address)))  # the key joins when it is checked
        scope.setdefault("state", {})["request_id"] = own_id
        try:
            if scope["type"] == "http":
                await self._http(scope, headers, receive, send, own_id)
            elif self._is_cross_origin(headers) or headers.get("host") not in self._hosts:
                await send({"type": "websocket.close", "code": 1008})  # before the accept: the client sees a 403
            else:
                await self._websocket(scope, receive, send)
        finally:
            request_id.reset(token)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._app(scope, receive, send)
        except ClientDisconnected:
            pass
        except Exception as error:
            response = error_response(error)  # logs it
            with contextlib.suppress(ClientDisconnected):
                try:
                    await WebSocket(scope, receive, send).send_denial_response(response)
                except RuntimeError:  # after the handshake
                    with contextlib.suppress(RuntimeError):  # it is closed already
                        await send({"type": "websocket.close", "code": 1011})

    async def _http(self, scope: Scope, headers: Headers, receive: Receive, send: Send, own_id: str) -> None:
        start_s, status = time.monotonic(), _NOT_STARTED
        is_head = scope["method"] == "HEAD"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                inner_headers = [header for header in message["headers"] if header[0] not in _OWN_NAMES]
                message["headers"] = [*inner_headers, (b"x-request-id", own_id.encode()), *_SECURITY_HEADERS]
            elif is_head:
                message["body"] = b""
            await send(message)

        try:
            self._check_host(headers)
            if scope["method"] not in ("GET", "HEAD", "OPTIONS") and self._is_cross_origin(headers):
                raise NotAllowedError("requests from web pages of this origin are not allowed; add it to cors_origins")
            scope["state"]["api_key"] = self._authenticate(scope, headers)
            inner = {**scope, "method": "GET"} if is_head else scope
            body = RequestBody(headers, receive, self._service.config.max_body_bytes, self._service.ledger["request"])
            app = self._direct.get((scope["method"], scope["path"]), self._app)
            with contextlib.closing(body):
                await app(inner, body, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception as error:
            known = api_error(error)  # logs an unexpected one
            self._service.metrics.refused(scope["path"], known.status)
            clear_tracebacks(error)
            # After the first byte the response stays incomplete: the client sees the loss.
            if status == _NOT_STARTED:
                await refusal_at(scope["path"], known)(scope, receive, send_with_headers)
        finally:
            level = logging.INFO if scope["path"].startswith(("/v1", "/v2", "/api")) else logging.DEBUG
            fields = log_fields(status=status, ms=round(1000 * (time.monotonic() - start_s), 1))
            # The name of a kept file is the only key to it.
            path = f"{FILES_PATH}..." if scope["path"].startswith(FILES_PATH) else scope["path"]
            _log.log(level, "%s %s", scope["method"], quote(path), extra=fields)

    def _check_host(self, headers: Headers) -> None:
        if (host := headers.get("host")) not in self._hosts:
            name = shown_name(host_name(host or ""))
            advice = "use localhost or an address, or start the server with --allowed-hosts NAME"
            raise NotAllowedError(f"the Host header {name!r} is not allowed; {advice}", code="host_not_allowed")

    def _is_cross_origin(self, headers: Headers) -> bool:
        """Whether another site's page sends this request from a user's browser. Programs send no Origin."""
        origin = headers.get("origin")
        if origin is None or {origin, "*"} & set(self._service.config.cors_origins):
            return False
        return origin.partition("://")[2] != headers.get("host")

    def _authenticate(self, scope: Scope, headers: Headers) -> str:
        if not needs_api_key(scope["path"]) or scope["method"] == "OPTIONS":
            return ""
        return self._service.api_keys.authenticate(headers, role=role_needed(scope["method"], scope["path"]))


_LOOPBACK_NAMES = ("localhost", "*.localhost")
# Names that exist only in local networks, for services and machines.
_LOCAL_NAMES = ("*.local", "*.internal", "*.home.arpa")
_LABEL = re.compile(r"[a-z0-9_-]+")


class AllowedHosts:
    """The names of the server that requests may use. A page of another site can make its own name resolve to this
    machine (DNS rebinding); a browser then takes the server for that site, and lets the page read it.

    Addresses are always allowed, because only names can be rebound. A server with keys allows every name unless it
    is told some: the key protects it, and behind a proxy the name is the proxy's."""

    def __init__(self, bind_host: str, allowed: Sequence[str], *, has_keys: bool) -> None:
        self._any = "*" in allowed or (has_keys and not allowed)
        self._patterns = [*_LOOPBACK_NAMES, bind_host, *allowed]
        self._local = not _is_loopback(bind_host)
        if self._local:
            self._patterns += _LOCAL_NAMES
        self._allows = lru_cache(maxsize=64)(self._matches)  # clients use few names

    def __contains__(self, host: str | None) -> bool:
        """`host` is the Host header. Clients that send none are programs, which cannot be rebound."""
        return self._any or not host or self._allows(host)

    def _matches(self, host: str) -> bool:
        name = host_name(host)
        port = host.rpartition(":")[2] if host.count(":") == 1 else None
        ports = (port,) if port else ("80", "443")
        shown = (name, *(f"{name}:{port}" for port in ports))
        if any(matches_host(one, self._patterns) for one in shown) or _is_address(name):
            return True
        return self._local and _LABEL.fullmatch(name) is not None  # a machine or a container of this network


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return without_dot(host.rpartition(":")[0] if host.count(":") == 1 else host)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(bind_host: str) -> bool:
    return bind_host == "localhost" or (_is_address(bind_host) and ipaddress.ip_address(bind_host).is_loopback)
