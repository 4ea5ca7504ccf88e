"""Requests, retries, and the finish reason of a response."""

import asyncio
import base64
import json

import pytest

from oscine_bench.exchange import Exchange, RequestFailure
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest
from oscine_eval.run import RetryingClient, finish_reason, sent_seed, with_finish_reason

HELLO = PlannedRequest("hello", 7, 0)


def answer(headers: dict[str, str], body: bytes = b"") -> Exchange:
    return Exchange(HELLO, 0.0, headers=headers, body=[body[:20], body[20:]])


def test_the_finish_reason_is_read_from_a_header() -> None:
    assert finish_reason(answer({"x-finish-reason": "runaway"})) == "runaway"
    assert finish_reason(answer({"content-type": "audio/pcm"}, b"data: speech.audio.done")) is None


def test_the_finish_reason_is_read_from_the_last_event() -> None:
    sound = {"type": "speech.audio.delta", "audio": base64.b64encode(b"sound").decode()}
    done = {"type": "speech.audio.done", "finish_reason": "length"}
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in (sound, done)).encode()
    assert finish_reason(answer({"content-type": "text/event-stream; charset=utf-8"}, body)) == "length"
    without = body.replace(b'"finish_reason": "length"', b'"usage": null')
    assert finish_reason(answer({"content-type": "text/event-stream"}, without)) is None


@pytest.mark.parametrize(
    ("options", "streaming"),
    [
        ({}, {"stream": False}),
        ({"extra": {"stream": True}}, {"stream": True}),
        ({"sse": True}, {"stream_format": "sse"}),
        ({"preset_name": "vllm-omni"}, {"stream": True, "stream_format": "audio"}),
    ],
)
def test_only_our_server_is_asked_for_the_whole_response(options: dict, streaming: dict) -> None:
    asked = json.loads(with_finish_reason(Target(url="http://127.0.0.1", **options)).body(HELLO))
    assert {name: asked[name] for name in ("stream", "stream_format") if name in asked} == streaming


@pytest.mark.parametrize(
    ("options", "seed"),
    [
        ({}, 7),
        ({"preset_name": "oscine-ws"}, 7),
        ({"preset_name": "openai"}, None),
        ({"extra": {"seed": 3}}, 3),
        ({"preset_name": "openai", "extra": {"seed": 3}}, 3),
        ({"extra": {"seed": None}}, None),
    ],
)
def test_the_recorded_seed_is_the_sent_one(options: dict, seed: int | None) -> None:
    target = Target(url="http://127.0.0.1", **options)
    assert sent_seed(target, HELLO) == json.loads(target.body(HELLO)).get("seed") == seed


class BusyServer:
    """Refuses so many times."""

    def __init__(self, refusals: int, kind: str = "http_429", retry_after: str = "0") -> None:
        self.refusals, self.kind, self.retry_after, self.asked = refusals, kind, retry_after, 0

    async def send(self, request: PlannedRequest, due_s: float | None = None) -> Exchange:
        self.asked += 1
        failure = RequestFailure(self.kind) if self.asked <= self.refusals else None
        return Exchange(request, 0.0, headers={"retry-after": self.retry_after}, failure=failure)

    async def close(self) -> None: ...


def send_with_retries(server: BusyServer, timeout_s: float = 60.0) -> Exchange:
    return asyncio.run(RetryingClient(server, timeout_s).send(HELLO))


def test_a_request_to_a_busy_server_is_repeated() -> None:
    server = BusyServer(2)
    assert send_with_retries(server).failure is None and server.asked == 3


def test_retries_end_at_the_timeout() -> None:
    server = BusyServer(5, "http_503", retry_after="7")
    assert send_with_retries(server, timeout_s=1.0).failure == RequestFailure("http_503") and server.asked == 1


def test_other_refusals_are_not_repeated() -> None:
    server = BusyServer(1, "http_400")
    assert send_with_retries(server).failure == RequestFailure("http_400") and server.asked == 1
