"""Jobs on threads: at most so many, and none for a client that has left."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from oscine.errors import OverloadedError
from oscine.process.resources import WorkPool

WAIT_S = 60.0


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
