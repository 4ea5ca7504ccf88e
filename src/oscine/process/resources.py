"""The ledger of what requests hold together: bytes in memory, and jobs on named pools of threads. Each resource has a
limit in all, per API key and per client address; what exceeds one is refused with OverloadedError."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from oscine.errors import OverloadedError
from oscine.process.fair_executor import FairExecutor

_T = TypeVar("_T")
_RETRY_S = 2.0
TOO_MUCH_HELD = "too_much_held"  # the code of a refusal for bytes


class Owner(NamedTuple):
    """The client that a resource is held for. "" has no limit of its own."""

    key: str = ""  # "": it needs none
    address: str = ""  # "": the program itself


_NOBODY = Owner()
current_owner: contextvars.ContextVar[Owner] = contextvars.ContextVar("owner", default=_NOBODY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much of one resource requests may hold; a limit of None does not apply."""

    kind: str
    covers: str  # for the documentation
    full: str  # says that the limit of `{whose}` clients is reached, which is `{limit}`
    in_all: int
    settings: tuple[str, ...] = ()  # where the limits come from
    per_key: int | None = None
    per_address: int | None = None
    free: int = 0  # of each request, uncounted: small requests pass beside large ones
    threads: int = 0  # that jobs run on; 0: bytes are counted, not jobs
    advice: str = ""

    def shown(self, amount: int) -> str:
        return str(amount) if self.threads else f"{amount / 2**20:.3g} MiB"


class Account:
    """What requests hold of one resource. Any thread may change it."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.refused = limit, 0
        self._lock = threading.Lock()
        self._held: Counter[tuple[str, str]] = Counter()  # by key, by address and in all

    def __len__(self) -> int:
        return self._held["of all clients", ""]

    def open(self, owner: Owner | None = None) -> Holding:
        """Counts for `owner`, or else the client of the current request."""
        return Holding(self, owner or current_owner.get())

    @contextlib.contextmanager
    def hold(self, size: int = 0) -> Iterator[Holding]:
        """Holds this much, and what is added to it, inside the block. Raises OverloadedError if there is no room."""
        with contextlib.closing(self.open()) as holding:
            holding.add(size)
            yield holding

    def has_room(self, owner: Owner, size: int) -> bool:
        return self._exceeded(owner, size) is None

    def change(self, owner: Owner, size: int) -> None:
        """Holds more or, with a negative `size`, less. Raises OverloadedError if there is no room."""
        with self._lock:
            if size <= 0 or (exceeded := self._exceeded(owner, size)) is None:
                for holder, _ in self._limits(owner):
                    self._held[holder] += size
                    if not self._held[holder]:
                        del self._held[holder]
                return
            self.refused += 1
        whose, most = exceeded
        message = self.limit.full.format(whose=whose, limit=self.limit.shown(most))
        message = f"{message} (the maximum); {self.limit.advice}retry in {_RETRY_S} s"
        raise OverloadedError(message, _RETRY_S, code=None if self.limit.threads else TOO_MUCH_HELD)

    def _exceeded(self, owner: Owner, size: int) -> tuple[str, int] | None:
        """Returns whose limit has no room for it, and that limit."""
        for holder, most in self._limits(owner):
            if most is not None and self._held[holder] + size > most:
                return holder[0], most
        return None

    def _limits(self, owner: Owner) -> tuple[tuple[tuple[str, str], int | None], ...]:
        limit = self.limit
        return (
            (("of this key", owner.key), limit.per_key if owner.key else None),
            (("of this address", owner.address), limit.per_address if owner.address else None),
            (("of all clients", ""), limit.in_all),
        )


class Holding:
    """What one request holds of a resource."""

    def __init__(self, account: Account, owner: Owner) -> None:
        self._account, self._owner = account, owner
        self._size = self._counted = 0

    def add(self, size: int) -> None:
        """Raises OverloadedError, and adds nothing, if there is no room."""
        counted = max(0, self._size + size - self._account.limit.free)
        if counted != self._counted:
            self._account.change(self._owner, counted - self._counted)
        self._size, self._counted = self._size + size, counted

    def moved(self) -> Holding:
        """Hands what it holds to another holding, which is returned."""
        other = Holding(self._account, self._owner)
        other._size, other._counted, self._size, self._counted = self._size, self._counted, 0, 0
        return other

    def resize(self, size: int) -> None:
        """Raises OverloadedError, and changes nothing, if there is no room."""
        self.add(size - self._size)

    def close(self) -> None:
        """Gives all of it back. May be called more than once, and the holding used again."""
        self.resize(0)


class _ClientLeftError(Exception):
    """Nobody waits for the result of a job."""


def _client() -> str:
    owner = current_owner.get()
    return owner.key or owner.address


class WorkPool:
    """Threads for one kind of work, which serve their clients in turn. A job whose client has left does not start;
    one that runs is counted until its thread is free."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self.executor = FairExecutor(account.limit.threads, f"oscine-{account.limit.kind}", _client)  # does not count

    def admit(self) -> contextlib.AbstractContextManager[Holding]:
        """Counts a job inside the block. Raises OverloadedError if there are too many."""
        return self._account.hold(1)

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Runs a job on a thread, whose log lines have the request's id. Raises OverloadedError if there are too
        many."""
        holding = self._account.open()
        holding.add(1)
        try:
            future = self.executor.submit(functools.partial(contextvars.copy_context().run, call))
        except RuntimeError:  # it was shut down
            holding.close()
            raise
        future.add_done_callback(lambda _: holding.close())
        return future

    async def run(self, call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """The result of a job. Raises OverloadedError if there are too many."""
        return await asyncio.wrap_future(self.submit(functools.partial(call, *arguments, **options)))

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


class Ledger:
    """The only place that counts what requests hold."""

    def __init__(self, limits: Iterable[Limit]) -> None:
        self.accounts = {limit.kind: Account(limit) for limit in limits}
        self._pools = {kind: WorkPool(account) for kind, account in self.accounts.items() if account.limit.threads}

    def __getitem__(self, kind: str) -> Account:
        return self.accounts[kind]

    def pool(self, kind: str) -> WorkPool:
        return self._pools[kind]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.executor.shutdown(wait=False, cancel_futures=True)
