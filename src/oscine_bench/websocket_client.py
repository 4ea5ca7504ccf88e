"""A client for our WebSocket (docs/api.md) that stamps every read. Text is sent whole or word by word.

The websockets package frames messages without I/O; reads are stamped here, as in http_client.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from oscine_bench.connections import Clock, Connection, ConnectionPool
from oscine_bench.exchange import Exchange, error_message
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest

_NO_SPACES = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # scripts written without spaces
_PIECE = re.compile(rf"[{_NO_SPACES}]\s*|[^\s{_NO_SPACES}]+\s*|\s+")


def pieces(text: str) -> list[str]:
    """Splits a text into words with the space after them, or single characters in scripts without spaces. Joined, they
    are the text."""
    return _PIECE.findall(text)


class WebSocketConnection(Connection):
    """Carries one session, with one utterance after the other."""

    def __init__(self, url: str, api_key: str | None, clock: Clock) -> None:
        super().__init__(clock)
        self._protocol = ClientProtocol(uri := parse_uri(url))
        self._path = uri.path
        self._api_key = api_key
        self._exchange: Exchange | None = None
        self._text = b""  # fragments of an incomplete text message
        self._binary = False
        self._next_piece: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        request = self._protocol.connect()
        if self._api_key:
            request.headers["Authorization"] = f"Bearer {self._api_key}"
        self._protocol.send_request(request)
        await self._wait_for("open", self._flush)

    async def perform(self, exchange: Exchange, session: dict[str, Any], text: list[str], interval_s: float) -> None:
        self._exchange = exchange
        try:
            await self._wait_for("session.ready", lambda: self._send(session))
            exchange.sent_s = self._clock()
            await self._wait_for("audio.done", lambda: self._send_text(iter(text), interval_s))
        finally:
            self._exchange = None
            if self._next_piece is not None:  # speech ended before the text did; the rest must not join the next one
                self._next_piece.cancel()
                self.usable = False

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._flush()
        super().close()

    def data_received(self, data: bytes) -> None:
        now_s = self._clock()
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._on_handshake()
            elif isinstance(event, Frame):
                self._on_frame(event, now_s)
        error = self._protocol.handshake_exc or self._protocol.parser_exc  # neither is reported as an event
        if error is not None:
            self.usable = False
            self._fail("malformed", f"not a WebSocket: {error.__cause__ or error}")
        self._flush()  # pongs, and the reply to a close

    def on_close(self, error: Exception | None) -> None:
        self._protocol.receive_eof()  # ends a refusal that has no length
        if any(isinstance(event, Response) for event in self._protocol.events_received()):
            self._on_handshake()
        self._fail("cut", "the connection closed before the end of the response")

    def _on_handshake(self) -> None:
        error = self._protocol.handshake_exc
        if error is None:
            self._reach("open")
        elif isinstance(error, InvalidStatus):
            response = error.response
            status, message = response.status_code, error_message(bytes(response.body or b""))
            kind = f"http_{status}" if status != 200 else "malformed"
            refusal = f"{self._path} returned {status} {response.reason_phrase}"
            self._fail(kind, f"{refusal}: {message}" if message else refusal)
        else:
            self._fail("malformed", str(error))

    def _on_frame(self, frame: Frame, now_s: float) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._binary = frame.opcode is Opcode.BINARY
        elif frame.opcode is Opcode.CLOSE:
            self.usable = False
            self._fail("cut", f"the server closed the session: {self._protocol.close_rcvd}")
            return
        elif frame.opcode is not Opcode.CONT:
            return
        if self._binary:
            if self._exchange is not None and frame.data:
                self._exchange.add(now_s, bytes(frame.data))
            return
        self._text += bytes(frame.data)
        if frame.fin:
            text, self._text = self._text, b""
            try:
                self._on_message(json.loads(text), now_s)
            except (ValueError, AttributeError):
                self._fail("malformed", f"a message is not a JSON object: {text[:80]!r}")

    def _on_message(self, message: dict[str, Any], now_s: float) -> None:
        kind = str(message.get("type"))
        if kind == "error":
            self._fail("reported", error_message(json.dumps(message).encode()))
        elif kind == "audio.start" and self._exchange is not None:
            rate_hz = message.get("sample_rate")
            self._exchange.headers["x-sample-rate"] = "" if rate_hz is None else str(rate_hz)
        elif kind == self._expected:
            if self._exchange is not None and kind == "audio.done":
                self._exchange.end_s = now_s
                self._exchange.headers["x-finish-reason"] = str(message.get("finish_reason") or "")  # as over HTTP
            self._reach(kind)

    def _send_text(self, rest: Iterator[str], interval_s: float) -> None:
        """Sends the next piece now, schedules the others, then ends the text."""
        self._next_piece = None
        for piece in rest:
            self._send({"type": "input.text", "text": piece})
            if interval_s > 0:
                loop = asyncio.get_running_loop()
                self._next_piece = loop.call_later(interval_s, self._send_text, rest, interval_s)
                return
        self._send({"type": "input.done"})

    def _send(self, message: dict[str, Any]) -> None:
        self._protocol.send_text(json.dumps(message, ensure_ascii=False).encode())
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.write(data)


class WebSocketClient:
    """Sends requests over sessions. Time starts with the first text; connection, handshake and settings come before, as
    in a conversation."""

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = 120.0,
        clock: Clock = time.perf_counter,
        word_interval_s: float | None = None,  # None: the whole text in one message
    ) -> None:
        self._target, self._clock, self._interval_s = target, clock, word_interval_s
        address = target.address
        url = f"{'wss' if address.tls else 'ws'}://{address.authority}{target.path}"
        self._pool = ConnectionPool(address, lambda: WebSocketConnection(url, target.api_key, clock), clock, timeout_s)

    async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        exchange = Exchange(request, self._clock() if due_s is None else due_s)
        session = self._target.session(request)
        text = [request.text] if self._interval_s is None else pieces(request.text)
        interval_s = self._interval_s or 0.0
        await self._pool.run(exchange, lambda connection: connection.perform(exchange, session, text, interval_s))
        if exchange.failure is None:
            exchange.status = 200
        return exchange

    async def close(self) -> None:
        await self._pool.close()
