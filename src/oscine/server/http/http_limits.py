"""uvicorn's HTTP protocol with limits on what arrives before any API key is checked: the number of connections, the
size of a request's head and the time it takes, and the body of a request that was answered without it."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from oscine.errors import OscineError
from oscine.server.http.connections import OpenConnections
from oscine.server.http.errors import HeadTooLargeError, error_response

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

_MAX_HEAD_BYTES = 64 * 2**10
HEAD_S = 30.0  # from the start of a connection, or from the first byte of a head, to its end
REST_S = 5.0  # for the rest of a body that nobody reads
_STREAMED = b"transfer-encoding: chunked\r\n\r\n"  # the end of a head
_TOO_LARGE = HeadTooLargeError(
    f"the request line and headers exceed {_MAX_HEAD_BYTES // 2**10} KiB; send text and settings in the body"
)


def raw_error(error: OscineError) -> bytes:
    """Encodes the response to input that never becomes a request of the application."""
    response = error_response(error)
    headers = [*response.raw_headers, (b"connection", b"close")]
    head = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"%b%b\r\n%b" % (STATUS_LINE[response.status_code], head, bytes(response.body))


class HeadJoiningTransport:
    """Sends the head of a streamed response together with the first bytes of its body, if they follow at once: one
    system call and one packet instead of two before the first audio. Everything else passes through."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head: bytes | None = None  # b"" after it was sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head is None and data.endswith(_STREAMED):  # uvicorn writes the head in one piece
            self._head = data
            self._loop.call_soon(self._flush)
            return
        head, self._head = self._head or b"", b""
        self._transport.write(head + data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            self.write(b"")


class BoundedHttpProtocol(HttpToolsProtocol):
    """The parser buffers incomplete input without reporting it, so this class counts the bytes since the parser last
    completed something. They belong to a head, or surround a chunked body."""

    _pending_bytes = 0
    _progressed = False  # the parser completed something with the last bytes
    _in_head = False
    _in_request = False  # the head is complete, the rest is not
    _too_large = False
    _head_timer: TimerHandle | None = None
    _rest_timer: TimerHandle | None = None
    _running: RequestResponseCycle | None = None

    @property
    def _connections(self) -> OpenConnections:
        return self.config.app.state.service.connections  # type: ignore[union-attr]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = self.client[0] if self.client else None
        if error := self._connections.refusal(peer):
            transport.write(raw_error(error))
            transport.close()
            return
        self._connections.enter(self, peer)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        self._stop_head_timer()
        self._stop_rest_timer()
        if self._running and not self._running.response_complete:  # uvicorn tells only the request that came last
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        cycle.transport = HeadJoiningTransport(cycle.transport, self.loop)  # type: ignore[assignment]
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        self._connections.leave(self)  # the WebSocket enters
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._progressed = False
        super().data_received(data)
        self._pending_bytes = 0 if self._progressed else self._pending_bytes + len(data)
        if self._pending_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()
        elif not self._in_request and (self._in_head or self._pending_bytes) and self._head_timer is None:
            self._start_head_timer()
        if self._is_idle and self.timeout_keep_alive_task is None:  # the rest of a body has arrived
            self._start_keep_alive_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_request and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._rest_timer = self.loop.call_later(REST_S, self.transport.close)

    # --- callbacks of the parser ---

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head is too large")  # stops the parser; uvicorn then calls send_400_response
        self._progressed, self._in_head, self._in_request = True, False, True
        self._stop_head_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progressed, self._in_request = True, False
        self._stop_rest_timer()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    # --- heads that are too large or too slow ---

    def _refuse_head(self) -> None:
        if not self._responding:
            self.transport.write(raw_error(_TOO_LARGE))
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        if self._responding:  # to the previous request; reading may be paused meanwhile
            self._start_head_timer()
        else:
            self.transport.close()

    def _stop_rest_timer(self) -> None:
        if self._rest_timer:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _start_keep_alive_timer(self) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    @property
    def _is_idle(self) -> bool:
        """Whether the connection is between two requests."""
        partial = self._in_head or self._in_request or self._pending_bytes or self.pipeline
        return self.cycle is not None and self.cycle.response_complete and not partial

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete
