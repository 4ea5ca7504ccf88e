"""HTTP/1.1 without a framework: one protocol object per connection, parsed by httptools, every read stamped.

A general client spends more on a read than a server spends on making it, and stamps it when some task gets its turn.
Here a read is stamped in data_received, before anything else is done with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httptools

from oscine import __version__
from oscine.bench.exchange import Exchange, Failure
from oscine.bench.pool import Clock, Connection, Pool
from oscine.bench.targets import Target
from oscine.bench.workload import Utterance
from oscine.types import OscineError

_TLS_ALERT = b"\x15\x03"  # how a server that speaks TLS answers plain HTTP


def error_message(body: bytes) -> str:
    """The message of an OpenAI-shaped or FastAPI-shaped error, or the beginning of whatever came."""
    text = body.decode("utf-8", "replace").strip()
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        parsed = text
    if isinstance(parsed, dict):
        inner = parsed.get("error", parsed)
        parsed = inner.get("message", inner.get("detail", inner)) if isinstance(inner, dict) else inner
    return str(parsed)


def _refusal(exchange: Exchange) -> Failure:
    """An answer with another status than 200."""
    status, place = exchange.status, exchange.headers.get("location")
    if status < 300:
        message = "sound comes with status 200"
    elif status < 400 and place:
        message = f"redirected to {place}; give the address that answers itself"
    else:
        message = error_message(b"".join(exchange.body)) or "no message"
    return Failure(f"http_{status}", message)


class HttpConnection(Connection):
    """One exchange at a time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._now_s = 0.0

    def send(self, exchange: Exchange, request: bytes, timeout_s: float) -> asyncio.Future[None]:
        assert self._exchange is None
        loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._exchange, self._done = exchange, loop.create_future()
        self._timer = loop.call_later(timeout_s, self._give_up, timeout_s)
        self._framed = False  # whether the answer says itself where it ends
        exchange.sent_s = self._clock()
        self.write(request)
        return self._done

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        self._now_s = self._clock()
        if self._exchange is None:  # bytes after the end of an answer: whatever they are, this line is not sound
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            hint = "; it speaks TLS: give https://" if data.startswith(_TLS_ALERT) else ""
            self._end(Failure("malformed", f"not HTTP: {error}{hint}"))
            self.close()

    def hung_up(self, error: Exception | None) -> None:
        if self._exchange is None:
            return
        self._now_s = self._clock()
        if self._exchange.status and not self._framed and error is None:
            self._end(None)  # HTTP/1.0 style: the end of the connection is the end of the answer
        else:
            got = self._exchange.body_bytes[-1] if self._exchange.body_bytes else 0
            self._end(Failure("cut", f"the connection ended after {got} bytes, before the end of the answer"))

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._exchange is not None
        key = name.decode("latin-1").lower()
        self._exchange.headers[key] = value.decode("latin-1")
        self._framed = self._framed or key in ("content-length", "transfer-encoding")

    def on_headers_complete(self) -> None:
        assert self._exchange is not None
        self._exchange.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        if self._exchange is not None and piece:
            self._exchange.take(self._now_s, piece)

    def on_message_complete(self) -> None:
        assert self._exchange is not None
        if 100 <= self._exchange.status < 200 and self._exchange.status != 101:  # only an announcement
            self._exchange.headers.clear()
            self._exchange.status, self._framed = 0, False
            return
        self.usable = self.usable and self._parser.should_keep_alive()
        self._end(None)

    def _give_up(self, timeout_s: float) -> None:
        self._now_s = self._clock()
        self._end(Failure("timeout", f"no end of the answer within {timeout_s:g} s"))

    def _end(self, failure: Failure | None) -> None:
        exchange, done = self._exchange, self._done
        if exchange is None or done is None:
            return
        self._exchange = None
        if self._timer is not None:
            self._timer.cancel()
        exchange.end_s = self._now_s
        if failure is None and exchange.status != 200:
            failure = _refusal(exchange)
        exchange.failure = failure
        if failure is not None and not failure.kind.startswith("http_"):
            self.close()
        if not done.done():
            done.set_result(None)


class HttpClient:
    """Keeps connections and reuses the one used last."""

    def __init__(self, target: Target, *, timeout_s: float = 120.0, clock: Clock = time.perf_counter) -> None:
        self._target, self._timeout_s, self._clock = target, timeout_s, clock
        self._address = target.address
        self._head = self._request_head("POST", target.path)
        self._pool = Pool(self._address, lambda: HttpConnection(clock), clock)

    async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
        body = self._target.body(utterance)
        exchange = Exchange(utterance, self._clock() if due_s is None else due_s)
        return await self._send(exchange, b"%s%d\r\n\r\n%s" % (self._head, len(body), body))

    async def get(self, path: str) -> Exchange:
        """Anything beside speech: which models are served, which version."""
        exchange = Exchange(Utterance("", 0, 0), self._clock())
        head = self._request_head("GET", self._address.base_path + path)
        return await self._send(exchange, head + b"0\r\n\r\n")

    async def close(self) -> None:
        await self._pool.close()

    async def _send(self, exchange: Exchange, request: bytes) -> Exchange:
        try:
            connection = self._pool.take()
            if connection is None:
                connection = await asyncio.wait_for(self._pool.connect(), self._timeout_s)
        except OSError as error:
            exchange.sent_s = exchange.end_s = self._clock()
            exchange.failure = self._pool.why_not(error, self._timeout_s)
            return exchange
        try:
            await connection.send(exchange, request, self._timeout_s)
        except asyncio.CancelledError:
            connection.close()
            raise
        self._pool.give(connection)
        return exchange

    def _request_head(self, method: str, path: str) -> bytes:
        """Up to the number of bytes of the body."""
        key = self._target.api_key
        if key is not None and not (key.isascii() and key.isprintable()):
            raise OscineError("the API key has characters that cannot stand in a header; was it pasted whole?")
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
