"""Connections to one server: opened when none is idle, kept for the next request, closed for certain at the end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from oscine.bench.exchange import Failure
from oscine.bench.targets import Address

Clock = Callable[[], float]

# Below the 5 s after which uvicorn and others hang up on an idle connection: a request that crosses with the hang-up
# would be counted as the server's failure.
IDLE_S = 2.0


class Connection(asyncio.Protocol):
    """What HTTP and WebSocket connections have in common."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self.usable = True
        self.idle_since_s = 0.0
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if not self.lost.done():
            self.lost.set_result(None)
        self.hung_up(error)

    def hung_up(self, error: Exception | None) -> None:
        """The connection has ended, whoever ended it."""

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.close()


_C = TypeVar("_C", bound=Connection)


class Pool(Generic[_C]):
    def __init__(self, address: Address, make: Callable[[], _C], clock: Clock) -> None:
        self._address, self._make, self._clock = address, make, clock
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[_C] = []
        self._open: set[_C] = set()

    def take(self) -> _C | None:
        """The one used last."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and self._clock() - connection.idle_since_s < IDLE_S:
                return connection
            connection.close()
        return None

    async def connect(self) -> _C:
        _, connection = await asyncio.get_running_loop().create_connection(
            self._make, self._address.host, self._address.port, ssl=self._tls
        )
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    def why_not(self, error: OSError, timeout_s: float) -> Failure:
        """What became of `connect`."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return Failure("tls", f"the certificate is not trusted: {error.verify_message}")
        # Whoever listens but knows no TLS hangs up on its first message, or answers something else.
        if self._tls is not None and isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
            return Failure("tls", f"https:// needs TLS, and the server does not speak it ({error}); try http://")
        return Failure("connect", str(error) or f"no connection within {timeout_s:g} s")

    def give(self, connection: _C) -> None:
        if connection.usable:
            connection.idle_since_s = self._clock()
            self._idle.append(connection)

    async def close(self) -> None:
        self._idle.clear()
        leaving = list(self._open)
        for connection in leaving:
            connection.close()
        await asyncio.gather(*(connection.lost for connection in leaving))
