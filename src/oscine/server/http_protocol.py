"""HTTP as uvicorn speaks it, with an end to what comes before any key is asked for: a request's head has to be small,
and it has to come."""

from __future__ import annotations

import asyncio
import json
from asyncio import TimerHandle

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from oscine.server.errors import ApiError

_MAX_HEAD_BYTES = 64 * 2**10
_HEAD_S = 30.0  # from a connection's first moment, or a head's first byte, to the head's end
_TOO_LARGE = ApiError(
    431,
    f"the request line and headers are larger than {_MAX_HEAD_BYTES // 2**10} KiB, which is the limit; "
    "send the text and the settings in the body",
    code="too_large",
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """The parser keeps what is not yet complete, and says nothing of it: so the bytes that led to nothing are counted.
    They are a head, or what may stand around a chunked body."""

    _waiting_bytes = 0
    _complete = False  # something was, by the last bytes
    _in_head = False
    _in_request = False  # its head has come, the rest has not
    _too_large = False
    _head_timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._complete = False
        super().data_received(data)
        self._waiting_bytes = 0 if self._complete else self._waiting_bytes + len(data)
        if self._waiting_bytes > _MAX_HEAD_BYTES:
            self._refuse_head()
        elif not self._in_request and (self._in_head or self._waiting_bytes) and self._head_timer is None:
            self._wait_for_head()

    # --- what the parser tells ---

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MAX_HEAD_BYTES:
            self._too_large = True
            raise ValueError("the head is too large")  # stops the parser; uvicorn then asks for a 400
        self._complete, self._in_head, self._in_request = True, False, True
        self._head_came()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._complete = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._complete, self._in_request = True, False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    # --- the end of a head that is too large or too late ---

    def _refuse_head(self) -> None:
        if not self._answering:
            body = json.dumps({"error": _TOO_LARGE.body}).encode()
            self.transport.write(
                STATUS_LINE[_TOO_LARGE.status] + b"content-type: application/json\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(_HEAD_S, self._head_late)

    def _head_came(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        if self._answering:  # the one before; nothing more may be read meanwhile
            self._wait_for_head()
        else:
            self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete
