"""Open connections: how many there may be, and the end of those that do not read."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from oscine.config import ServerConfig
from oscine.errors import NotReadyError
from oscine.server.http.logs import log_fields

_log = logging.getLogger(__name__)

SWEEP_S = 1.0
_REPORT_S = 60.0  # between two reports of refused connections


class Connection(Protocol):
    transport: asyncio.Transport


@dataclass(slots=True)
class _Progress:
    address: str
    since_s: float  # since then the peer has read nothing
    unsent_bytes: int = 0


class OpenConnections:
    def __init__(self, config: ServerConfig) -> None:
        self._max_connections, self._max_per_address = config.max_connections, config.connections_per_address
        self._stalled_s = config.stalled_s
        self._open: dict[Connection, _Progress] = {}
        self._per_address: Counter[str] = Counter()
        self._refused = 0
        self._reported_s = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def refusal(self, peer: str | None) -> NotReadyError | None:
        """Returns why a new connection is refused, or None."""
        address, total = client_network(peer), len(self._open)
        if total >= self._max_connections:
            reason = f"the server has {total} connections"
        elif self._per_address[address] >= self._max_per_address:
            reason = f"your address has {self._per_address[address]} connections"
        else:
            return None
        self._report(reason)
        message = f"{reason} (the maximum); close some, or try again later"
        return NotReadyError(message, 1.0, code="too_many_connections")

    def enter(self, connection: Connection, peer: str | None) -> None:
        address = client_network(peer)
        self._open[connection] = _Progress(address, time.monotonic())
        self._per_address[address] += 1

    def leave(self, connection: Connection) -> None:
        if progress := self._open.pop(connection, None):  # or it was refused
            self._per_address[progress.address] -= 1
            if not self._per_address[progress.address]:
                del self._per_address[progress.address]

    async def watch(self) -> None:
        """Sweeps every second until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep(time.monotonic())

    def sweep(self, now_s: float) -> None:
        """Aborts connections whose peers have read nothing for too long; `close` would never end.

        The kernel takes bytes in steps of a megabyte, so a slow reader also seems stalled for a while.
        """
        for connection, progress in list(self._open.items()):
            unsent_bytes = connection.transport.get_write_buffer_size()
            if not unsent_bytes or unsent_bytes < progress.unsent_bytes:
                progress.since_s = now_s
            progress.unsent_bytes = unsent_bytes
            if now_s - progress.since_s > self._stalled_s:
                _log.info("closing connection: client stopped reading", extra=log_fields(bytes=unsent_bytes))
                connection.transport.abort()

    def _report(self, reason: str) -> None:
        self._refused += 1
        if time.monotonic() - self._reported_s > _REPORT_S:
            _log.warning("refusing connections: %s", reason, extra=log_fields(refused=self._refused))
            self._reported_s, self._refused = time.monotonic(), 0


def client_network(peer: str | None) -> str:
    """Returns an IPv4 address, or the /64 network of an IPv6 address: one client may have all of it."""
    try:
        address = ipaddress.ip_address((peer or "").partition("%")[0])
    except ValueError:
        return peer or ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
