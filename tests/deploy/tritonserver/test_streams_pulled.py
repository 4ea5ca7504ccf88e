from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oscine.deploy.tritonserver.streams import Answer, CancellationWatcher, PulledStreams, Streams
from oscine.errors import RequestError
from tests.deploy.tritonserver.test_streams import Response

LATER_S = 3600.0  # never, in a test
ALL = 1000


@pytest.fixture
def streams() -> Iterator[Streams]:
    streams = Streams(CancellationWatcher(interval_s=0.001))
    yield streams
    streams.stop()


def values(codes: list[int], *, context: list[int] | None = None, segment_end: bool = False) -> dict[str, Any]:
    def frames(numbers: list[int]) -> np.ndarray:
        return np.array(numbers, np.int64).reshape(-1, 1).repeat(16, axis=1)

    return {"codes": frames(codes), "context_codes": frames(context or []), "segment_end": segment_end, "seed": 9}


class Talker:
    """Sends what a test tells it to."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._sent = streams, threading.Event()
        self._response: Any = None
        self.cancelled = threading.Event()

    async def answer(self, response: Any) -> None:
        self._response = response
        self._sent.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    def send(self, *parts: dict[str, Any], final: bool = False) -> None:
        assert self._sent.wait(600)

        def send() -> None:
            for index, part in enumerate(parts):
                self._response.send(part, final=final and index == len(parts) - 1)

        self._streams.call_soon(send)


def pull(pulled: PulledStreams, max_frames: int = ALL) -> Response:
    response = Response()
    pulled.pull("a", max_frames, response)
    return response


def start(pulled: PulledStreams, answer: Answer) -> Response:
    response = Response()
    pulled.start("a", answer, ALL, response)
    return response


def codes(response: Response) -> list[int]:
    (sent,) = response.wait()
    return [int(frame[0]) for frame in sent["codes"]]


def test_each_request_gets_what_was_made_since(streams: Streams) -> None:
    pulled, talker = PulledStreams(streams, wait_s=LATER_S), Talker(streams)
    first = start(pulled, talker.answer)
    talker.send(values([1], context=[7]))
    assert codes(first) == [1] and first.sent[0]["context_codes"][0][0] == 7
    waiting = pull(pulled)
    talker.send(values([2]))
    assert codes(waiting) == [2]
    talker.send(values([3]), values([4, 5]), values([6], segment_end=True), values([8], context=[7]))
    assert codes(pull(pulled, max_frames=3)) == [3, 4, 5]
    assert codes(pull(pulled)) == [6], "a response has frames of one segment"
    last = pull(pulled)
    assert codes(last) == [8] and last.sent[0]["context_codes"][0][0] == 7
    talker.send(values([9]), values([], segment_end=True), final=True)
    assert codes(pull(pulled)) == [9]
    (error,) = pull(pulled).wait()
    assert "no stream 'a' is open" in str(error)


def test_a_response_larger_than_asked_for_is_not_cut(streams: Streams) -> None:
    pulled, talker = PulledStreams(streams, wait_s=LATER_S), Talker(streams)
    first = start(pulled, talker.answer)
    talker.send(values([1, 2, 3]), values([4]))
    assert codes(first) == [1, 2, 3]
    assert codes(pull(pulled, max_frames=1)) == [4]


def test_a_request_is_answered_though_there_are_no_codes(streams: Streams) -> None:
    pulled, talker = PulledStreams(streams, wait_s=0.001), Talker(streams)
    assert start(pulled, talker.answer).wait() == ["end"]
    assert pull(pulled).wait() == ["end"]
    talker.send(values([1]))
    assert codes(pull(pulled)) == [1]


def test_an_error_is_the_answer_of_the_next_request(streams: Streams) -> None:
    async def fail(response: Any) -> None:
        raise RequestError("no such voice")

    pulled = PulledStreams(streams, wait_s=LATER_S)
    (error,) = start(pulled, fail).wait()
    assert "no such voice" in str(error)
    (error,) = pull(pulled).wait()
    assert "no stream 'a' is open" in str(error)


def test_a_cancelled_stream_answers_who_waits_and_is_forgotten(streams: Streams) -> None:
    pulled, talker = PulledStreams(streams, wait_s=LATER_S), Talker(streams)
    first = start(pulled, talker.answer)
    talker.send()
    streams.cancel("a")
    assert first.wait() == ["end"] and talker.cancelled.wait(600)
    assert codes_after_restart(pulled, streams) == [1]


def codes_after_restart(pulled: PulledStreams, streams: Streams) -> list[int]:
    talker = Talker(streams)
    first = start(pulled, talker.answer)
    talker.send(values([1]))
    return codes(first)


def test_a_stream_that_nobody_asks_for_is_cancelled(streams: Streams) -> None:
    pulled, talker = PulledStreams(streams, wait_s=0.001, abandoned_s=0.001), Talker(streams)
    assert start(pulled, talker.answer).wait() == ["end"]
    assert talker.cancelled.wait(600)
    (error,) = pull(pulled).wait()
    assert "no stream 'a' is open" in str(error)


def test_two_readers_of_one_stream_are_refused(streams: Streams) -> None:
    pulled, talker = PulledStreams(streams, wait_s=LATER_S), Talker(streams)
    first = start(pulled, talker.answer)
    (second,), (third,) = pull(pulled).wait(), start(pulled, talker.answer).wait()
    assert "send one at a time" in str(second) and "choose another id" in str(third)
    talker.send(values([1]))
    assert codes(first) == [1]


def test_stopping_answers_who_waits() -> None:
    streams = Streams()
    pulled, talker = PulledStreams(streams, wait_s=LATER_S), Talker(streams)
    first = start(pulled, talker.answer)
    talker.send()
    streams.stop()
    assert first.wait() == ["end"]
