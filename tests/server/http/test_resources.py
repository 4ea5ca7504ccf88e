"""What requests hold together has limits: bytes in memory, and jobs on threads."""

import asyncio
import threading

import pytest

from oscine.errors import OverloadedError
from oscine.server.http.logs import request_id
from oscine.server.http.resources import BytesInFlight, WorkPool


def test_bytes_are_counted_inside_a_block_only() -> None:
    held = BytesInFlight(2**20, "responses")
    with held.hold(2**20):
        assert len(held) == 2**20 - BytesInFlight.SMALL
        with pytest.raises(OverloadedError, match="large responses of all clients have 1 MiB"), held.hold(2**20):
            pass
        with held.hold(BytesInFlight.SMALL):  # small ones always pass
            assert len(held) == 2**20 - BytesInFlight.SMALL
    assert len(held) == 0


def test_a_pool_has_a_limit_and_a_job_without_a_client_does_not_start() -> None:
    started: list[str] = []
    free = threading.Event()

    def job(name: str) -> None:
        started.append(name)
        free.wait(600)

    async def run() -> None:
        pool = WorkPool("test", threads=1, max_jobs=2)
        running = asyncio.create_task(pool.run(job, "first"))
        left = asyncio.create_task(pool.run(job, "left"))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="2 test jobs run or wait"):
            await pool.run(job, "third")
        left.cancel()
        await asyncio.wait([left])
        free.set()
        await pool.run(job, "fourth")
        await running
        pool.close()

    asyncio.run(run())
    assert started == ["first", "fourth"]


def test_log_lines_of_a_job_have_the_id_of_its_request() -> None:
    async def run() -> str:
        request_id.set("my-id")
        pool = WorkPool("test", threads=1, max_jobs=1)
        found = await pool.run(request_id.get)
        pool.close()
        return found

    assert asyncio.run(run()) == "my-id"
