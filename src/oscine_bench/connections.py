"""Connections that can be waited for, their pool, and errors that become failures. Both clients use them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

from websockets.exceptions import WebSocketException

from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.targets import Address

Clock = Callable[[], float]

# Below the 5 s after which uvicorn and others close an idle connection. A request that crosses with such a close would
# count as a failure of the server.
MAX_IDLE_S = 2.0


class FailedRequestError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.failure = RequestFailure(kind, message)


class Connection(asyncio.Protocol):
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._expected = ""
        self._reached: asyncio.Future[None] | None = None
        self.usable = True
        self.idle_since_s = 0.0
        self.closed = asyncio.get_running_loop().create_future()

    async def open(self) -> None:
        """Performs a handshake, if the protocol has one."""

    def on_close(self, error: Exception | None) -> None:
        """Called when the connection has ended, on either side."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if not self.closed.done():
            self.closed.set_result(None)
        self.on_close(error)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()

    async def _wait_for(self, event: str, begin: Callable[[], None]) -> None:
        self._reached, self._expected = asyncio.get_running_loop().create_future(), event
        begin()
        await self._reached

    def _reach(self, event: str) -> None:
        if event == self._expected and self._reached is not None and not self._reached.done():
            self._reached.set_result(None)

    def _fail(self, kind: str, message: str) -> None:
        if self._reached is not None and not self._reached.done():
            self._reached.set_exception(FailedRequestError(kind, message))


_C = TypeVar("_C", bound=Connection)


class ConnectionPool(Generic[_C]):
    """Opens connections on demand and keeps them for the next request."""

    def __init__(self, address: Address, make: Callable[[], _C], clock: Clock, timeout_s: float) -> None:
        self._address, self._make, self._clock, self._timeout_s = address, make, clock, timeout_s
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[_C] = []
        self._open: set[_C] = set()

    async def run(self, exchange: Exchange, perform: Callable[[_C], Awaitable[None]]) -> Exchange:
        """Performs the exchange on a connection. Errors of the server and the network become its failure."""
        connection: _C | None = None
        exchange.sent_s = self._clock()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = self._take_idle() or await self._connect()
                await perform(connection)
        except FailedRequestError as error:
            exchange.failure = error.failure
        except OSError as error:
            timed_out = connection is not None and isinstance(error, TimeoutError)
            late = RequestFailure("timeout", f"the response did not end within {self._timeout_s:g} s")
            exchange.failure = late if timed_out else self.connect_failure(error)
        except (WebSocketException, ValueError) as error:
            exchange.failure = RequestFailure("malformed", str(error))
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if exchange.failure is not None and not exchange.end_s:
            exchange.end_s = self._clock()
        if connection is not None:
            self._give_back(connection, exchange.failure)
        return exchange

    def connect_failure(self, error: OSError) -> RequestFailure:
        if isinstance(error, ssl.SSLCertVerificationError):
            return RequestFailure("tls", f"the certificate is not trusted: {error.verify_message}")
        # A server without TLS closes the connection at the first TLS message, or answers with something else.
        if self._tls is not None and isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
            return RequestFailure("tls", f"https:// needs TLS, but the server does not speak it ({error}); try http://")
        return RequestFailure("connect", str(error) or f"no connection within {self._timeout_s:g} s")

    async def close(self) -> None:
        self._idle.clear()
        open_ = list(self._open)
        for connection in open_:
            connection.close()
        await asyncio.gather(*(connection.closed for connection in open_))

    def _take_idle(self) -> _C | None:
        """Returns the connection that was used last, if any is idle."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self._clock() - connection.idle_since_s < MAX_IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _C:
        _, connection = await asyncio.get_running_loop().create_connection(
            self._make, self._address.host, self._address.port, ssl=self._tls
        )
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
        try:
            await connection.open()
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_back(self, connection: _C, failure: RequestFailure | None) -> None:
        complete = failure is None or failure.kind.startswith("http_")
        if complete and connection.usable:
            connection.idle_since_s = self._clock()
            self._idle.append(connection)
        else:
            connection.close()
