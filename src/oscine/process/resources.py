"""What requests may hold together: bytes in memory, and jobs on named pools of threads. Each has a limit; what exceeds
it is refused with OverloadedError."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from oscine.errors import OverloadedError

_T = TypeVar("_T")


class BytesInFlight:
    """Bytes that are in memory for a while: bodies that have arrived until their requests end, or responses until
    their clients have read them."""

    SMALL = 64 * 2**10  # bytes of one body that are not counted: small requests pass beside large ones

    def __init__(self, max_bytes: int, what: str = "requests") -> None:
        self._max_bytes, self._what, self._bytes = max_bytes, what, 0

    def add(self, size: int) -> None:
        """Raises OverloadedError if there is no room."""
        if size > 0 and self._bytes + size > self._max_bytes:
            limit = f"{self._max_bytes / 2**20:.3g} MiB"
            message = f"large {self._what} of all clients have {limit} in memory (the maximum); retry in 2.0 s"
            raise OverloadedError(message, 2.0)
        self._bytes += size

    def remove(self, size: int) -> None:
        self._bytes -= size

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Counts these bytes inside the block. Raises OverloadedError if there is no room."""
        counted = max(0, size - self.SMALL)
        self.add(counted)
        try:
            yield
        finally:
            self.remove(counted)

    def __len__(self) -> int:
        return self._bytes


class CollectedBytes:
    """What is collected before it is sent: whole files, batches, sentences of a WebSocket. Counted by owner and in
    all, from the first byte until the client has read the last one."""

    def __init__(self, max_bytes: int, max_bytes_per_owner: int) -> None:
        self._max_bytes, self._max_bytes_per_owner = max_bytes, max_bytes_per_owner
        self._bytes: Counter[str] = Counter()

    def open(self, owner: str) -> Collection:
        return Collection(self, owner)

    def add(self, owner: str, size: int) -> None:
        """Raises OverloadedError if there is no room."""
        for held, limit, whose in (
            (self._bytes[owner], self._max_bytes_per_owner, "of this key"),
            (len(self), self._max_bytes, "of all clients"),
        ):
            if held + size > limit:
                message = f"files {whose} that are not sent yet have {limit / 2**20:.3g} MiB (the maximum)"
                raise OverloadedError(f"{message}; stream the audio, or retry in 2.0 s", 2.0)
        self._bytes[owner] += size

    def remove(self, owner: str, size: int) -> None:
        self._bytes[owner] -= size
        if not self._bytes[owner]:
            del self._bytes[owner]

    def __len__(self) -> int:
        return self._bytes.total()


class Collection:
    """The collected bytes of one response."""

    def __init__(self, ledger: CollectedBytes, owner: str) -> None:
        self._ledger, self._owner, self._size = ledger, owner, 0

    def add(self, size: int) -> None:
        """Raises OverloadedError if there is no room."""
        self._ledger.add(self._owner, size)
        self._size += size

    def close(self) -> None:
        """They were sent, or nobody waits for them. May be called more than once, and used again."""
        self._ledger.remove(self._owner, self._size)
        self._size = 0


class _ClientLeftError(Exception):
    """Nobody waits for the result of a job."""


class WorkPool:
    """A few threads for one kind of work. At most `max_jobs` run or wait; one whose client has left does not start."""

    def __init__(self, work: str, threads: int, max_jobs: int) -> None:
        self._work, self._max_jobs, self._jobs = work, max_jobs, 0
        self.executor = ThreadPoolExecutor(threads, f"oscine-{work}")

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Counts a job inside the block. Raises OverloadedError if there are too many."""
        if self._jobs >= self._max_jobs:
            message = f"{self._jobs} {self._work} jobs run or wait (the maximum); retry in 2.0 s"
            raise OverloadedError(message, 2.0)
        self._jobs += 1
        try:
            yield
        finally:
            self._jobs -= 1

    async def run(self, call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Runs a job on a thread, whose log lines have the request's id. Raises OverloadedError if there are too
        many."""
        job = functools.partial(contextvars.copy_context().run, call, *arguments, **options)
        with self.admit():
            return await asyncio.get_running_loop().run_in_executor(self.executor, job)

    async def run_while_wanted(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Runs a job that gets `check_cancelled`, which ends it once its client has left: call it now and then."""
        left = threading.Event()

        def check_cancelled() -> None:
            if left.is_set():
                raise _ClientLeftError

        try:
            return await self.run(call, *arguments, check_cancelled=check_cancelled)
        finally:
            left.set()

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)
