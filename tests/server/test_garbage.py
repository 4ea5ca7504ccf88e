"""Requests and connections leave no reference cycles. Applications are called in memory: clients leave cycles too."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message

from oscine.errors import OverloadedError, clear_tracebacks
from oscine.server.api import batch
from oscine.server.app import build_app
from tests.garbage import garbage_of
from tests.server.scripted_engine import CARD, ScriptedEngine

SPEECH = "/v1/audio/speech"
BATCH = "/v1/audio/speech/batch"
LIVE = "/v1/audio/speech/stream"


class FullEngine(ScriptedEngine):
    """Refuses as an engine in another process does: the error arrives in a future."""

    async def submit(self, *arguments: Any, **options: Any) -> None:
        accepted = Future[None]()
        accepted.set_exception(OverloadedError("The server is full. Retry in 1.0 s.", 1.0))
        await asyncio.wrap_future(accepted)


@pytest.fixture
def full_engine() -> Iterator[FullEngine]:
    engine = FullEngine()
    yield engine
    engine.stop()


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


class Connection:
    """The server's side of a request or WebSocket, in a task of its own."""

    def __init__(self, app: FastAPI, path: str, **scope: Any) -> None:
        self._received, self._sent = asyncio.Queue[Message](), asyncio.Queue[Message]()
        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope |= {"path": path, "root_path": "", "query_string": b"", "http_version": "1.1", "headers": headers}
        scope |= {"client": None, "server": ("127.0.0.1", 80), "subprotocols": [], "extensions": {}}
        self._task = asyncio.create_task(app(scope, self._received.get, self._sent.put))

    def receive(self, kind: str, **fields: Any) -> None:
        self._received.put_nowait({"type": kind, **fields})

    def receive_json(self, message: Any) -> None:
        self.receive("websocket.receive", text=json.dumps(message))

    async def sent(self, kind: str) -> Message:
        """The next message of this kind. That of an event is its own."""
        while True:
            message = await self._sent.get()
            if kind in (message["type"], json.loads(message.get("text") or "{}").get("type")):
                return message

    async def ended(self) -> None:
        await self._task


async def status_of(app: FastAPI, path: str, body: bytes) -> int:
    connection = Connection(app, path, type="http", method="POST", scheme="http")
    connection.receive("http.request", body=body, more_body=False)
    await connection.ended()
    status: int = (await connection.sent("http.response.start"))["status"]
    return status


def live(app: FastAPI, path: str = LIVE) -> Connection:
    connection = Connection(app, path, type="websocket", scheme="ws")
    connection.receive("websocket.connect")
    return connection


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (SPEECH, b'{"input": "Hello."}', 429),
        (SPEECH, b'{"input": "Hello.", "voice": "nobody"}', 400),
        (SPEECH, b'{"input": "Hello.", "speed": 100}', 400),
        (SPEECH, b'{"input": 5}', 400),
        (SPEECH, b"{", 400),
        (BATCH, b'{"items": [{"input": "Hello."}]}', 200),  # refused, retried and refused again
        (BATCH, b'{"items": [{"input": "Hello.", "voice": "nobody"}]}', 200),
        (BATCH, b'{"items": []}', 400),
    ],
)
def test_a_refusal_leaves_nothing_for_the_garbage_collector(
    full_engine: FullEngine,
    runner: asyncio.Runner,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: bytes,
    status: int,
) -> None:
    monkeypatch.setattr(batch, "time", SimpleNamespace(monotonic=itertools.count(step=15).__next__))
    monkeypatch.setattr(batch, "MAX_RETRY_WAIT_S", 0.0)
    app, statuses = build_app(full_engine, CARD), set[int]()
    assert garbage_of(lambda: statuses.add(runner.run(status_of(app, path, body)))) < 20
    assert statuses == {status}


def test_a_refused_utterance_leaves_nothing_for_the_garbage_collector(
    full_engine: FullEngine, runner: asyncio.Runner
) -> None:
    async def connect() -> Connection:
        return live(build_app(full_engine, CARD))

    async def refuse(connection: Connection) -> None:
        connection.receive_json({"type": "input.text", "text": "Hello."})
        connection.receive_json({"type": "input.done"})
        await connection.sent("error")
        await connection.sent("session.done")

    connection = runner.run(connect())
    assert garbage_of(lambda: runner.run(refuse(connection))) < 20


@pytest.mark.parametrize(
    ("path", "messages", "sent"),
    [
        (LIVE, [], "websocket.accept"),
        ("/api-ws/v1/realtime", [], "websocket.accept"),
        ("/v1/audio/speech/ws", [], "websocket.accept"),
        (LIVE, [{"type": "session.close"}], "websocket.close"),
        (LIVE, [{}] * 100, "websocket.close"),
        (LIVE, [{"type": "session.config", "voice": "nobody"}], "error"),
        (LIVE, [{"type": "input.text", "text": "Hello. " * 30}], "audio.start"),
        (LIVE, [{"type": "input.text", "text": "Hello. " * 30}, {"type": "input.cancel"}], "input.cancelled"),
    ],
)
def test_a_connection_that_ends_leaves_nothing_for_the_garbage_collector(
    engine: ScriptedEngine, runner: asyncio.Runner, path: str, messages: list[Any], sent: str
) -> None:
    async def converse() -> None:
        connection = live(app, path)
        for message in messages:
            connection.receive_json(message)
        await connection.sent(sent)
        connection.receive("websocket.disconnect", code=1000)
        await connection.ended()

    app = build_app(engine, CARD)
    assert garbage_of(lambda: runner.run(converse())) < 20


def test_a_task_group_that_fails_leaves_nothing_for_the_garbage_collector(runner: asyncio.Runner) -> None:
    async def fail() -> None:
        error = ValueError("a bug")  # in a variable: its frame is a cycle
        raise error

    async def fail_in_a_group() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        except ExceptionGroup as errors:
            clear_tracebacks(errors)

    assert garbage_of(lambda: runner.run(fail_in_a_group())) < 20
