"""The same measurement over our WebSocket (docs/api.md): text goes in whole or word by word, sound comes in frames.

The websockets package does framing without I/O; reads are stamped here, as in client.py.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from oscine.bench.client import error_message
from oscine.bench.exchange import Exchange, Failure
from oscine.bench.pool import Clock, Connection, Pool
from oscine.bench.targets import Target
from oscine.bench.workload import Utterance

# A word with the space after it; in scripts without spaces, a character.
_PIECE = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]\s*|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+\s*|\s+"
)


def pieces(text: str) -> list[str]:
    """The text as a language model would hand it over; joined, they are the text."""
    return _PIECE.findall(text)


class LiveConnection(Connection):
    """One session; utterances one after the other."""

    def __init__(self, url: str, api_key: str | None, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._wire = ClientProtocol(uri := parse_uri(url))
        self._path = uri.path
        self._api_key = api_key
        self._exchange: Exchange | None = None
        self._text = b""  # of a text message whose last frame has not come yet
        self._binary = False
        self._waiting: asyncio.Future[None] | None = None
        self._waits_for = ""
        self._next_piece: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        request = self._wire.connect()
        if self._api_key:
            request.headers["Authorization"] = f"Bearer {self._api_key}"
        self._wire.send_request(request)
        await self._until("open", self._flush)

    async def speak(self, exchange: Exchange, session: dict[str, Any], text: list[str], interval_s: float) -> None:
        self._exchange = exchange
        try:
            await self._until("session.ready", lambda: self.tell(session))
            exchange.sent_s = self._clock()
            await self._until("audio.done", lambda: self._feed(iter(text), interval_s))
        finally:
            self._exchange = None
            if self._next_piece is not None:  # it ended before its text did: the rest would be the next one's
                self._next_piece.cancel()
                self.usable = False

    def tell(self, message: dict[str, Any]) -> None:
        self._wire.send_text(json.dumps(message, ensure_ascii=False).encode())
        self._flush()

    def close(self) -> None:
        if self._wire.state is State.OPEN:
            self._wire.send_close(1000)
            self._flush()
        super().close()

    # What the event loop calls.

    def data_received(self, data: bytes) -> None:
        now_s = self._clock()
        self._wire.receive_data(data)
        for event in self._wire.events_received():
            if isinstance(event, Response):
                self._opened()
            elif isinstance(event, Frame):
                self._take(event, now_s)
        broken = self._wire.handshake_exc or self._wire.parser_exc  # neither comes as an event
        if broken is not None:
            self.usable = False
            self._fail(Failure("malformed", f"not a WebSocket: {broken.__cause__ or broken}"))
        self._flush()  # pongs, and the answer to a close

    def hung_up(self, error: Exception | None) -> None:
        self._wire.receive_eof()  # where a refusal has no length, this is its end
        if any(isinstance(event, Response) for event in self._wire.events_received()):
            self._opened()
        self._fail(Failure("cut", "the connection ended before the answer did"))

    def _opened(self) -> None:
        error = self._wire.handshake_exc
        if error is None:
            self._reached("open")
        elif isinstance(error, InvalidStatus):
            answer = error.response
            status, message = answer.status_code, error_message(bytes(answer.body or b""))
            told = f"{self._path} was answered with {status} {answer.reason_phrase}"
            kind = f"http_{status}" if status != 200 else "malformed"
            self._fail(Failure(kind, f"{told}: {message}" if message else told))
        else:
            self._fail(Failure("malformed", str(error)))

    def _take(self, frame: Frame, now_s: float) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._binary = frame.opcode is Opcode.BINARY
        elif frame.opcode is Opcode.CLOSE:
            self.usable = False
            self._fail(Failure("cut", f"the server closed the session: {self._wire.close_rcvd}"))
            return
        elif frame.opcode is not Opcode.CONT:
            return
        if self._binary:
            if self._exchange is not None and frame.data:
                self._exchange.take(now_s, bytes(frame.data))
            return
        self._text += bytes(frame.data)
        if frame.fin:
            text, self._text = self._text, b""
            try:
                self._told(json.loads(text), now_s)
            except (ValueError, AttributeError):
                self._fail(Failure("malformed", f"a message that is no JSON object: {text[:80]!r}"))

    def _told(self, message: dict[str, Any], now_s: float) -> None:
        kind = str(message.get("type"))
        if kind == "error":
            self._fail(Failure("reported", error_message(json.dumps(message).encode())))
        elif kind == "audio.start" and self._exchange is not None:
            rate_hz = message.get("sample_rate")
            self._exchange.headers["x-sample-rate"] = "" if rate_hz is None else str(rate_hz)
        elif kind == self._waits_for:
            if self._exchange is not None:
                self._exchange.end_s = now_s
                self._exchange.headers["x-finish-reason"] = str(message.get("finish_reason") or "")  # as over HTTP
            self._reached(kind)

    def _feed(self, rest: Iterator[str], interval_s: float) -> None:
        """The next piece now, the others at their times; then the end of the text."""
        self._next_piece = None
        for piece in rest:
            self.tell({"type": "input.text", "text": piece})
            if interval_s > 0:
                loop = asyncio.get_running_loop()
                self._next_piece = loop.call_later(interval_s, self._feed, rest, interval_s)
                return
        self.tell({"type": "input.done"})

    async def _until(self, kind: str, begin: Callable[[], None]) -> None:
        self._waiting, self._waits_for = asyncio.get_running_loop().create_future(), kind
        begin()
        await self._waiting

    def _reached(self, kind: str) -> None:
        if kind == self._waits_for and self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _fail(self, failure: Failure) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(_LiveError(failure))

    def _flush(self) -> None:
        for data in self._wire.data_to_send():
            if data:
                self.write(data)


class _LiveError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class LiveClient:
    """Time begins with the first text: connection, handshake and settings are there before, as in a conversation."""

    def __init__(
        self,
        target: Target,
        *,
        timeout_s: float = 120.0,
        clock: Clock = time.perf_counter,
        word_interval_s: float | None = None,  # None: the whole text in one message
    ) -> None:
        self._target, self._timeout_s, self._clock, self._interval_s = target, timeout_s, clock, word_interval_s
        address = target.address
        url = f"{'wss' if address.tls else 'ws'}://{address.authority}{target.path}"
        self._pool = Pool(address, lambda: LiveConnection(url, target.api_key, clock), clock)

    async def speak(self, utterance: Utterance, due_s: float | None = None) -> Exchange:
        begun_s = self._clock()
        exchange = Exchange(utterance, begun_s if due_s is None else due_s, sent_s=begun_s)
        text = [utterance.text] if self._interval_s is None else pieces(utterance.text)
        connection: LiveConnection | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._pool.take() or await self._connect()
                await connection.speak(exchange, self._target.session(utterance), text, self._interval_s or 0.0)
            exchange.status = 200
        except _LiveError as error:
            exchange.failure = error.failure
        except TimeoutError:
            exchange.failure = Failure("timeout", f"no end of the answer within {self._timeout_s:g} s")
        except OSError as error:
            exchange.failure = self._pool.why_not(error, self._timeout_s)
        except (WebSocketException, ValueError) as error:
            exchange.failure = Failure("malformed", str(error))
        if exchange.failure is not None:
            exchange.end_s = self._clock()
            if connection is not None:
                connection.close()
        elif connection is not None and connection.usable:
            self._pool.give(connection)
        elif connection is not None:
            connection.close()
        return exchange

    async def close(self) -> None:
        await self._pool.close()

    async def _connect(self) -> LiveConnection:
        connection = await self._pool.connect()
        try:
            await connection.open()
        except BaseException:
            connection.close()
            raise
        return connection
