"""Look-ups of the names of hosts that clips are fetched from.

A name server that does not answer keeps a thread for many seconds, and cannot be asked to stop. So one host has few
threads at once, and one client half of them; further look-ups of theirs wait, and those of others do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from concurrent.futures import Future
from functools import partial
from typing import Any

from oscine.process.resources import WorkPool, current_owner

MAX_OF_HOST, MAX_OF_CLIENT = 2, 4  # at once; further ones wait


class NameLookups:
    """Counts look-ups until their threads are free. For one event loop at a time."""

    def __init__(self, pool: WorkPool) -> None:
        self._pool = pool
        self._running: Counter[str] = Counter()  # by host and by client, until their threads are free
        self._ended = asyncio.Event()  # of the next one that ends

    async def addresses(self, host: str, port: int) -> list[str]:
        """Returns the addresses of a host, each once. Raises OSError for an unknown one, and OverloadedError."""
        owner = current_owner.get()
        limits = {f"host {host}": MAX_OF_HOST, f"client {owner.key or owner.address}": MAX_OF_CLIENT}
        while any(self._running[name] >= most for name, most in limits.items()):
            await self._ended.wait()
        job = self._pool.submit(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        self._running.update(limits.keys())
        job.add_done_callback(partial(self._free, asyncio.get_running_loop(), [*limits]))
        found = await asyncio.wrap_future(job)
        return [*dict.fromkeys(str(entry[4][0]) for entry in found)]

    def _free(self, loop: asyncio.AbstractEventLoop, names: list[str], _: Future[Any]) -> None:
        """Called on the thread of the job."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._end, names)

    def _end(self, names: list[str]) -> None:
        self._running.subtract(names)
        for name in names:
            if not self._running[name]:
                del self._running[name]
        self._ended.set()
        self._ended = asyncio.Event()
