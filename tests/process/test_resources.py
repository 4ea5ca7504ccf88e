"""What requests hold together has limits: bytes in memory, and jobs on threads, none for a client that has left."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from oscine.errors import OverloadedError
from oscine.process.resources import Account, Ledger, Limit, Owner, WorkPool, current_owner

WAIT_S = 60.0
MIB = 2**20


def account(**limits: Any) -> Account:
    return Account(Limit(kind="x", covers="", full="files {whose} have {limit}", **{"in_all": 10 * MIB, **limits}))


def ledger(max_jobs: int) -> Ledger:
    jobs = Limit(kind="text", covers="", full="{limit} text jobs {whose} run or wait", in_all=max_jobs, threads=1)
    return Ledger([jobs])


def pool(max_jobs: int) -> WorkPool:
    return ledger(max_jobs).pool("text")


def test_bytes_are_counted_inside_a_block_only() -> None:
    held = account(in_all=MIB, free=1024)
    with held.hold(MIB):
        assert len(held) == MIB - 1024
        with pytest.raises(OverloadedError, match=r"files of all clients have 1 MiB \(the maximum\); retry in 2"):
            held.open().add(MIB)
        with held.hold(1024):  # small ones always pass
            assert len(held) == MIB - 1024
    assert len(held) == 0 and held.refused == 1


@pytest.mark.parametrize(
    ("limit", "other", "whose"),
    [({"per_key": MIB}, Owner("b", "1"), "of this key"), ({"per_address": MIB}, Owner("a", "2"), "of this address")],
)
def test_a_client_cannot_take_the_room_of_others(limit: dict[str, int], other: Owner, whose: str) -> None:
    held = account(**limit, advice="stream the audio, or ")
    own = held.open(Owner("a", "1"))
    own.add(MIB)
    with pytest.raises(OverloadedError, match=f"files {whose} have 1 MiB .*; stream the audio, or retry in 2"):
        own.add(1)
    held.open(other).add(MIB)
    assert len(held) == 2 * MIB
    own.close()
    own.close()
    assert len(held) == MIB
    own.add(MIB)  # it may be used again


def test_what_is_refused_is_not_counted() -> None:
    held = account(in_all=100, per_key=50)
    one = held.open(Owner("a"))
    one.add(50)
    with pytest.raises(OverloadedError):
        one.resize(51)
    assert len(held) == 50
    one.resize(10)
    assert len(held) == 10


def test_a_holding_counts_for_the_client_of_its_request() -> None:
    held = account(per_key=100)

    def request(key: str) -> None:
        current_owner.set(Owner(key))
        held.open().add(100)

    for key in ("a", "b"):
        contextvars.copy_context().run(request, key)
    with pytest.raises(OverloadedError, match="of this key"):
        contextvars.copy_context().run(request, "a")


def test_more_jobs_than_the_limit_are_refused() -> None:
    go = threading.Event()

    async def run() -> None:
        text = pool(2)
        jobs = [asyncio.create_task(text.run(go.wait, WAIT_S)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"2 text jobs of all clients run or wait \(the maximum\)"):
            await text.run(go.wait)
        go.set()
        assert await asyncio.gather(*jobs) == [True, True]

    asyncio.run(run())


def test_a_job_ends_when_its_client_leaves() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(name: str, check_cancelled: Callable[[], None]) -> None:
        begun.set()
        try:
            while True:
                check_cancelled()
        finally:
            ended.set()

    async def run() -> None:
        text = pool(2)
        job = asyncio.create_task(text.run_while_wanted(work, "a"))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        job.cancel()
        assert await asyncio.to_thread(ended.wait, WAIT_S)
        assert await text.run(lambda: "the thread is free") == "the thread is free"

    asyncio.run(run())


def test_a_waiting_job_does_not_start_when_its_client_leaves() -> None:
    started: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        started.append(name)
        go.wait(WAIT_S)

    async def run() -> None:
        text = pool(4)
        running, left = (asyncio.create_task(text.run(work, name)) for name in ("running", "left"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        go.set()
        await text.run(work, "last")
        await running

    asyncio.run(run())
    assert started == ["running", "last"]


def test_a_job_counts_until_its_thread_is_free() -> None:
    """A client that sends jobs and leaves would fill the threads, uncounted."""
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(WAIT_S)

    async def run() -> None:
        resources = ledger(1)
        text = resources.pool("text")
        job = asyncio.create_task(text.run(work))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        job.cancel()
        await asyncio.wait([job])
        with pytest.raises(OverloadedError):
            await text.run(work)
        go.set()
        text.executor.shutdown()
        assert len(resources["text"]) == 0

    asyncio.run(run())


def test_a_waiting_job_of_a_client_that_left_does_not_count() -> None:
    go = threading.Event()

    async def run() -> None:
        resources = ledger(2)
        text = resources.pool("text")
        running, left = (asyncio.create_task(text.run(go.wait, WAIT_S)) for _ in range(2))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        assert len(resources["text"]) == 1
        go.set()
        assert await running and len(resources["text"]) == 0

    asyncio.run(run())


def test_a_client_with_many_jobs_delays_another_by_one() -> None:
    ran: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        go.wait(WAIT_S)
        ran.append(name)

    async def run() -> None:
        text = pool(10)
        jobs = []
        for owner in (Owner("", "1"), Owner("", "1"), Owner("", "1"), Owner("", "2"), Owner("a", "1")):
            current_owner.set(owner)
            jobs.append(asyncio.create_task(text.run(work, owner.key or owner.address)))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*jobs)

    asyncio.run(run())
    assert ran == ["1", "1", "2", "a", "1"]  # the first ran already when the others came


def test_clients_without_a_key_share_no_limit_of_a_key() -> None:
    held = account(per_key=MIB)
    for address in "12":
        held.open(Owner("", address)).add(MIB)
    assert len(held) == 2 * MIB


def test_a_job_has_the_context_of_its_request() -> None:
    request_id = contextvars.ContextVar("request_id", default="-")

    async def run() -> str:
        request_id.set("my-id")
        return await pool(1).run(request_id.get)

    assert asyncio.run(run()) == "my-id"
