"""Responses that are written while they are produced: stalled clients, and clients that leave."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from oscine.errors import EngineError
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse
from tests.engine.recorder import WAIT_S

Produce = Callable[[ResponseWriter], Awaitable[None]]


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def respond(produce: Produce, receive: Callable[[], Awaitable[Any]] = never) -> list[Message]:
    """What was sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await asyncio.wait_for(StreamingSpeechResponse(produce, 60.0)({"type": "http"}, receive, send), WAIT_S)
    return sent


def test_a_write_that_stalls_ends_the_response() -> None:
    async def stall() -> None:
        async def send(message: Message) -> None:
            if message["body"] == b"stalls":
                await never()

        writer = ResponseWriter(send, 0.05)
        for _ in range(3):  # each takes less than the limit, all together longer
            await writer.write(b"quick")
            await asyncio.sleep(0.03)
        with pytest.raises(ConnectionResetError, match=r"read nothing for 0\.05 s"):
            await writer.write(b"stalls")
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
        await writer.write(b"quick")
        writer.close()

    asyncio.run(asyncio.wait_for(stall(), WAIT_S))


def test_a_cancelled_write_is_no_stall() -> None:
    async def cancel() -> None:
        writer = ResponseWriter(lambda message: never(), 60.0)
        writing = asyncio.ensure_future(writer.write(b"x"))
        await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        writer.close()

    asyncio.run(cancel())


def test_a_client_that_leaves_cancels_the_production_and_nothing_is_raised() -> None:
    ended: list[str] = []

    async def produce(writer: ResponseWriter) -> None:
        try:
            await never()
        finally:
            ended.append("cancelled")

    async def run() -> list[Message]:
        left = asyncio.Event()

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        responding = asyncio.ensure_future(respond(produce, receive))
        await asyncio.sleep(0)
        left.set()
        return await responding

    assert asyncio.run(run()) == [] and ended == ["cancelled"]


def test_a_response_that_is_cancelled_from_outside_stays_cancelled() -> None:
    async def run() -> None:
        responding = asyncio.ensure_future(respond(lambda writer: never()))
        await asyncio.sleep(0)
        responding.cancel()
        await responding

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())


@pytest.mark.parametrize("started", [False, True])
def test_an_error_is_answered_only_before_the_first_byte(started: bool) -> None:
    async def produce(writer: ResponseWriter) -> None:
        if started:
            await writer.start({})
        raise EngineError("broken")

    sent = asyncio.run(respond(produce))
    assert [message.get("status") for message in sent] == ([200] if started else [503, None])
