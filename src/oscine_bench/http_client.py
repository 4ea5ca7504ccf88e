"""An HTTP/1.1 client that stamps every read.

A general client stamps a read only when some task gets its turn. Here data_received stamps it first, before httptools
parses it.
"""

from __future__ import annotations

import time

import httptools

from oscine import __version__
from oscine.errors import OscineError
from oscine_bench.connections import Clock, Connection, ConnectionPool
from oscine_bench.exchange import Exchange, error_message
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest

_TLS_ALERT = b"\x15\x03"  # a TLS server's answer to plain HTTP


def _status_message(exchange: Exchange) -> str:
    """Returns why a status other than 200 is a failure."""
    location = exchange.headers.get("location")
    if exchange.status < 300:
        return "expected status 200"
    if exchange.status < 400 and location:
        return f"redirected to {location}; use that address"
    return error_message(b"".join(exchange.body)) or "no message"


class HttpConnection(Connection):
    """Carries one exchange at a time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._exchange: Exchange | None = None
        self._now_s = 0.0

    async def perform(self, exchange: Exchange, request: bytes) -> None:
        assert self._exchange is None
        self._parser = httptools.HttpResponseParser(self)
        self._exchange = exchange
        self._has_length = False  # whether the headers say where the body ends
        exchange.sent_s = self._clock()
        try:
            await self._wait_for("response", lambda: self.write(request))
        finally:
            self._exchange = None

    def data_received(self, data: bytes) -> None:
        self._now_s = self._clock()
        if self._exchange is None:  # bytes after the end of a response: the connection cannot be reused
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            hint = "; the server speaks TLS: use https://" if data.startswith(_TLS_ALERT) else ""
            self._end("malformed", f"not HTTP: {error}{hint}")
            self.close()

    def on_close(self, error: Exception | None) -> None:
        if self._exchange is None:
            return
        self._now_s = self._clock()
        if self._exchange.status and not self._has_length and error is None:
            self._end()  # HTTP/1.0 style: the body ends with the connection
        else:
            received = self._exchange.body_bytes[-1] if self._exchange.body_bytes else 0
            self._end("cut", f"the connection closed after {received} bytes of an incomplete response")

    # Callbacks of the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._exchange is not None
        key = name.decode("latin-1").lower()
        self._exchange.headers[key] = value.decode("latin-1")
        self._has_length = self._has_length or key in ("content-length", "transfer-encoding")

    def on_headers_complete(self) -> None:
        assert self._exchange is not None
        self._exchange.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        if self._exchange is not None and piece:
            self._exchange.add(self._now_s, piece)

    def on_message_complete(self) -> None:
        assert self._exchange is not None
        if 100 <= self._exchange.status < 200 and self._exchange.status != 101:  # informational; the response follows
            self._exchange.headers.clear()
            self._exchange.status, self._has_length = 0, False
            return
        self.usable = self.usable and self._parser.should_keep_alive()
        self._end()

    def _end(self, failure: str = "", message: str = "") -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.end_s = self._now_s
        if not failure and exchange.status != 200:
            failure, message = f"http_{exchange.status}", _status_message(exchange)
        if failure:
            self._fail(failure, message)
        self._reach("response")


class HttpClient:
    def __init__(self, target: Target, *, timeout_s: float = 120.0, clock: Clock = time.perf_counter) -> None:
        self._target, self._clock, self._address = target, clock, target.address
        self._head = self._request_head("POST", target.path)
        self._pool = ConnectionPool(self._address, lambda: HttpConnection(clock), clock, timeout_s)

    async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        body = self._target.body(request)
        exchange = Exchange(request, self._clock() if due_s is None else due_s)
        return await self._send(exchange, b"%s%d\r\n\r\n%s" % (self._head, len(body), body))

    async def get(self, path: str) -> Exchange:
        exchange = Exchange(PlannedRequest("", 0, 0), self._clock())
        return await self._send(exchange, self._request_head("GET", self._address.base_path + path) + b"0\r\n\r\n")

    async def _send(self, exchange: Exchange, request: bytes) -> Exchange:
        return await self._pool.run(exchange, lambda connection: connection.perform(exchange, request))

    async def close(self) -> None:
        await self._pool.close()

    def _request_head(self, method: str, path: str) -> bytes:
        """Returns everything before the value of content-length."""
        key = self._target.api_key
        if key is not None and not (key.isascii() and key.isprintable()):
            raise OscineError("the API key has characters that a header cannot carry; was it pasted correctly?")
        lines = [
            f"{method} {path} HTTP/1.1",
            f"host: {self._address.authority}",
            f"user-agent: oscine-bench/{__version__}",
            "accept: */*",
            "content-type: application/json",
            *([f"authorization: Bearer {key}"] if key else []),
            "content-length: ",
        ]
        return "\r\n".join(lines).encode()
