"""What requests hold together has limits: bytes in memory, and jobs on threads, none for a client that has left."""

import asyncio
import contextvars
import threading
from collections.abc import Callable

import pytest

from oscine.errors import OverloadedError
from oscine.process.resources import BytesInFlight, WorkPool

WAIT_S = 60.0


def test_bytes_are_counted_inside_a_block_only() -> None:
    held = BytesInFlight(2**20, "responses")
    with held.hold(2**20):
        assert len(held) == 2**20 - BytesInFlight.SMALL
        with pytest.raises(OverloadedError, match="large responses of all clients have 1 MiB"), held.hold(2**20):
            pass
        with held.hold(BytesInFlight.SMALL):  # small ones always pass
            assert len(held) == 2**20 - BytesInFlight.SMALL
    assert len(held) == 0


def test_more_jobs_than_the_limit_are_refused() -> None:
    go = threading.Event()

    async def run() -> None:
        pool = WorkPool("text", 1, 2)
        jobs = [asyncio.create_task(pool.run(go.wait, WAIT_S)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match=r"2 text jobs run or wait \(the maximum\)"):
            await pool.run(go.wait)
        go.set()
        assert await asyncio.gather(*jobs) == [True, True]
        pool.close()

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
        pool = WorkPool("text", 1, 2)
        job = asyncio.create_task(pool.run_while_wanted(work, "a"))
        assert await asyncio.to_thread(begun.wait, WAIT_S)
        job.cancel()
        assert await asyncio.to_thread(ended.wait, WAIT_S)
        assert await pool.run(lambda: "the thread is free") == "the thread is free"
        pool.close()

    asyncio.run(run())


def test_a_waiting_job_does_not_start_when_its_client_leaves() -> None:
    started: list[str] = []
    go = threading.Event()

    def work(name: str) -> None:
        started.append(name)
        go.wait(WAIT_S)

    async def run() -> None:
        pool = WorkPool("text", 1, 4)
        running, left = (asyncio.create_task(pool.run(work, name)) for name in ("running", "left"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        go.set()
        await pool.run(work, "last")
        await running
        pool.close()

    asyncio.run(run())
    assert started == ["running", "last"]


def test_a_job_has_the_context_of_its_request() -> None:
    request_id = contextvars.ContextVar("request_id", default="-")

    async def run() -> str:
        request_id.set("my-id")
        pool = WorkPool("text", 1, 1)
        found = await pool.run(request_id.get)
        pool.close()
        return found

    assert asyncio.run(run()) == "my-id"
