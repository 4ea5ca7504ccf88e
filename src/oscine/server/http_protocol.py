"""uvicorn's HTTP protocol with limits on a request's head, which arrives before any API key is checked: its size, and
the time it may take."""

from __future__ import annotations

import asyncio
import json
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from oscine.server.errors import ApiError

_MAX_HEAD_BYTES = 64 * 2**10
_HEAD_S = 30.0  # from the start of a connection, or from the first byte of a head, to its end
_TOO_LARGE = ApiError(
    431,
    f"the request line and headers exceed {_MAX_HEAD_BYTES // 2**10} KiB; send text and settings in the body",
    code="too_large",
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """The parser buffers incomplete input without reporting it, so this class counts the bytes since the parser last
    completed something. They belong to a head, or surround a chunked body."""

    _pending_bytes = 0
    _progressed = False  # the parser completed something with the last bytes
    _in_head = False
    _in_request = False  # the head is complete, the rest is not
    _too_large = False
    _head_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._progressed = False
        super().data_received(data)
        self._pending_bytes = 0 if self._progressed else self._pending_bytes + len(data)
        if self._pending_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()
        elif not self._in_request and (self._in_head or self._pending_bytes) and self._head_timer is None:
            self._start_head_timer()

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
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    # --- heads that are too large or too slow ---

    def _refuse_head(self) -> None:
        if not self._responding:
            body = json.dumps({"error": _TOO_LARGE.body}).encode()
            self.transport.write(
                STATUS_LINE[_TOO_LARGE.status] + b"content-type: application/json\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(_HEAD_S, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        if self._responding:  # to the previous request; reading may be paused meanwhile
            self._start_head_timer()
        else:
            self.transport.close()

    @property
    def _responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete
