from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from oscine.deploy.tritonserver.streams import CancellationWatcher, Streams
from oscine.errors import RequestError

WAIT_S = 600.0


class Response:
    """Records one answer as a list. Nothing may follow its end, no question either."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.cancelled = False
        self.ended = threading.Event()

    def send(self, values: Any, *, final: bool) -> None:
        self._add(values, last=final)

    def fail(self, error: Exception) -> None:
        self._add(error, last=True)

    def end(self) -> None:
        self._add("end", last=True)

    def is_cancelled(self) -> bool:
        assert not self.ended.is_set(), "the server has forgotten this request"
        return self.cancelled

    def _add(self, value: Any, *, last: bool) -> None:
        assert not self.ended.is_set(), "a response after the end"
        self.sent.append(value)
        if last:
            self.ended.set()

    def wait(self) -> list[Any]:
        assert self.ended.wait(WAIT_S), "the answer never ended"
        return self.sent


@pytest.fixture
def streams() -> Iterator[Streams]:
    streams = Streams(CancellationWatcher(interval_s=0.001))
    yield streams
    streams.stop()


async def count(response: Any) -> None:
    for number in range(3):
        await asyncio.sleep(0)
        response.send(number, final=number == 2)


async def wait_forever(response: Any) -> None:
    response.send("begun", final=False)
    await asyncio.Event().wait()


def begun(response: Response) -> None:
    while not response.sent:
        threading.Event().wait(0.001)


def test_requests_are_answered_side_by_side(streams: Streams) -> None:
    waiting, responses = Response(), [Response() for _ in range(5)]
    streams.start("", wait_forever, waiting)
    for response in responses:
        streams.start("", count, response)
    assert [response.wait() for response in responses] == [[0, 1, 2]] * 5
    assert not waiting.ended.is_set()


def test_an_error_is_the_answer_and_others_go_on(streams: Streams) -> None:
    async def fail(response: Any) -> None:
        raise RequestError("no such voice")

    failed, good = Response(), Response()
    streams.start("", fail, failed)
    streams.start("", count, good)
    (error,) = failed.wait()
    assert isinstance(error, RequestError) and good.wait() == [0, 1, 2]


def test_a_client_that_left_ends_its_stream_alone(streams: Streams) -> None:
    left, stays = Response(), Response()
    streams.start("", wait_forever, left)
    streams.start("", wait_forever, stays)
    begun(left)
    left.cancelled = True
    assert left.wait() == ["begun", "end"]
    assert not stays.ended.is_set()


def test_a_request_can_be_cancelled_by_its_id_and_only_by_that(streams: Streams) -> None:
    named, nameless = Response(), Response()
    streams.start("abc", wait_forever, named)
    streams.start("", wait_forever, nameless)
    begun(named)
    streams.cancel("")
    streams.cancel("unknown")
    streams.cancel("abc")
    assert named.wait() == ["begun", "end"]
    assert not nameless.ended.is_set()


def test_stopping_ends_everything() -> None:
    streams, response = Streams(), Response()
    streams.start("", wait_forever, response)
    begun(response)
    streams.stop()
    assert response.wait() == ["begun", "end"]
