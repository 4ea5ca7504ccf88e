"""Threads serve their clients in turn, whoever came first with how many jobs."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from oscine.process.fair_executor import FairExecutor

WAIT_S = 60.0


class Clients:
    """Submits jobs of named clients to one thread, and says in which order they ran."""

    def __init__(self) -> None:
        self.now, self.ran = "", list[str]()
        self.executor = FairExecutor(1, "test", lambda: self.now)
        self.go = threading.Event()
        self.submit("first")  # keeps the thread until `go`

    def submit(self, name: str, client: str | None = None) -> Future[None]:
        self.now = client or name
        return self.executor.submit(self._run, name)

    def _run(self, name: str) -> None:
        assert self.go.wait(WAIT_S)
        self.ran.append(name)


@pytest.fixture
def clients() -> Iterator[Clients]:
    clients = Clients()
    yield clients
    clients.go.set()
    clients.executor.shutdown()


def test_a_client_with_many_jobs_delays_another_by_one(clients: Clients) -> None:
    for number in range(4):
        last = clients.submit(f"a{number}", "a")
    for name in ("b0", "b1", "c0"):
        clients.submit(name, name[0])
    clients.go.set()
    last.result(WAIT_S)
    assert clients.ran == ["first", "a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_a_job_that_was_cancelled_does_not_start(clients: Clients) -> None:
    left, last = clients.submit("left"), clients.submit("last")
    assert left.cancel()
    clients.go.set()
    last.result(WAIT_S)
    assert clients.ran == ["first", "last"]


def test_an_error_is_that_of_its_job_only(clients: Clients) -> None:
    clients.go.set()
    with pytest.raises(ZeroDivisionError):
        clients.executor.submit(lambda: 1 / 0).result(WAIT_S)
    assert clients.executor.submit(int, "3", base=8).result(WAIT_S) == 3


def test_a_shutdown_cancels_what_waits(clients: Clients) -> None:
    waiting = clients.submit("waiting")
    clients.executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    with pytest.raises(RuntimeError):
        clients.submit("late")
