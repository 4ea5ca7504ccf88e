"""What a live session promises holds for the other protocols too: keys, limits, idle time, slow readers, leaving."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from oscine.config import ServerConfig
from tests.server.dialects import realtime_client
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import ScriptedEngine
from tests.server.serving import eventually

KEY = {"additional_headers": {"Authorization": "Bearer sesame"}}
CONFIG = ServerConfig(segment_chars=60, stalled_s=1.0, api_keys=("sesame",), streams_per_key=1)


@dataclass(frozen=True)
class Protocol:
    path: str
    options: dict[str, Any]
    begin: tuple[dict[str, Any], ...]  # before the text
    text: str  # the type of a text message

    def begin_text(self, client: Client, text: str) -> None:
        for message in (*self.begin, {"type": self.text, "sequence": 0, "text": text}):
            client.send_raw(json.dumps(message))


DASHSCOPE = Protocol(realtime_client.PATH, {}, (), "input_text_buffer.append")
NARI = Protocol(
    "/v1/audio/speech/ws",
    {"subprotocols": [Subprotocol("nari.speech.v1")]},
    ({"type": "request.start"},),
    "input_text.append",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("protocol", [DASHSCOPE, NARI], ids=["dashscope", "nari"]),
]


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine()
    with server_of(engine, CONFIG) as server:
        yield engine, server
    engine.stop()


@pytest.fixture
def engine(running: tuple[ScriptedEngine, Server]) -> Iterator[ScriptedEngine]:
    engine, server = running
    yield engine
    engine.ready = True
    engine.max_frames = float("inf")
    server.service.draining = False
    eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


@pytest.fixture
def server(running: tuple[ScriptedEngine, Server], engine: ScriptedEngine) -> Server:
    return running[1]


def test_a_key_is_needed(protocol: Protocol, server: Server) -> None:
    with server.client(protocol.path, **protocol.options) as client:
        code, received = client.closed()
        assert code == 1008 and [event["type"] for event in received.events] == ["error"]
        assert received.one("error")["error"]["code"] == "invalid_api_key"


def test_a_server_that_is_not_ready_says_when_to_retry(
    protocol: Protocol, server: Server, engine: ScriptedEngine
) -> None:
    engine.ready = False
    with server.client(protocol.path, **protocol.options, **KEY) as client:
        code, received = client.closed()
        assert code == 1013 and received.one("error")["error"]["retry_after_s"] > 0


def test_the_streams_of_a_key_are_limited(protocol: Protocol, server: Server, engine: ScriptedEngine) -> None:
    with (
        server.client(protocol.path, **protocol.options, **KEY) as client,
        server.client(protocol.path, **protocol.options, **KEY) as other,
    ):
        engine.max_frames = engine.status().frames + 2
        protocol.begin_text(client, "Hello")
        eventually(lambda: server.service.streams == 1)
        protocol.begin_text(other, "Hello")
        assert other.until("error").events[-1]["error"]["code"] == "too_many_streams"


def test_a_client_that_leaves_frees_its_slot(protocol: Protocol, server: Server, engine: ScriptedEngine) -> None:
    with server.client(protocol.path, **protocol.options, **KEY) as client:
        engine.max_frames = engine.status().frames + 2
        protocol.begin_text(client, "Hello")
        eventually(lambda: engine.status().slots_active == 1)
        client.leave()
        eventually(lambda: engine.status().slots_active == 0 and server.service.streams == 0)


def test_an_idle_session_is_closed(protocol: Protocol, engine: ScriptedEngine) -> None:
    with (
        server_of(engine, ServerConfig(live_idle_s=1.0)) as server,
        server.client(protocol.path, **protocol.options) as client,
    ):
        protocol.begin_text(client, "Hello")  # its text never ends
        code, received = client.closed()
        assert code == 4408 and received.events[-1]["error"]["code"] == "idle_timeout"


def test_a_client_that_does_not_read_is_disconnected(
    protocol: Protocol, server: Server, engine: ScriptedEngine
) -> None:
    options = {**protocol.options, **KEY, "max_queue": 1, "close_timeout": 0.1}
    with server.client(protocol.path, **options) as client:
        frames = engine.status().frames
        protocol.begin_text(client, "word " * 2000)  # 38 MB: more than the buffers on the way hold
        eventually(lambda: server.service.streams == 1)
        eventually(lambda: server.service.streams == 0)
        assert engine.status().frames - frames < 10_000


def test_a_draining_server_closes_idle_sessions(protocol: Protocol, server: Server) -> None:
    with server.client(protocol.path, **protocol.options, **KEY) as client:
        client.until("session.created")
        server.service.draining = True
        code, received = client.closed()
        assert code == 1013 and received.one("error")["error"]["code"] == "not_ready"


@pytest.mark.parametrize("message", ['{"type": "x", "text": "' + "é" * 2**21 + '"}', bytes(2**22 + 1)])
def test_an_oversized_message_ends_the_session(protocol: Protocol, server: Server, message: str | bytes) -> None:
    with server.client(protocol.path, **protocol.options, **KEY) as client:
        client.send_raw(message)
        code, received = client.closed()
        assert code == 1009 and received.events[-1]["error"]["code"] == "too_large"


def test_a_storm_of_noise_ends_the_session(protocol: Protocol, server: Server) -> None:
    with server.client(protocol.path, **protocol.options, **KEY) as client:
        with contextlib.suppress(ConnectionClosed):  # nari's protocol ends with the first one
            for _ in range(150):
                client.send_raw("noise")
        code, received = client.closed()
        assert code == 1008 and 1 <= len(received.all("error")) <= 101
