"""Conversations that broke a server, or tried to. Each ends as it should, and harms no other session."""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from oscine.config import ServerConfig
from tests.server.live.live_client import Client, Server, server_of
from tests.server.scripted_engine import ScriptedEngine, spoken
from tests.server.serving import eventually
from tests.websocket import connect

CONVERSATIONS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("conversations.json").read_text())


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedEngine, Server]]:
    engine = ScriptedEngine(slots=2, queue=4)
    with server_of(engine, ServerConfig(live_pause_s=0.1)) as server:
        yield engine, server
    engine.stop()


def play(socket: ClientConnection, steps: list[dict[str, Any]]) -> None:
    for step in steps:
        match step:
            case {"times": count, "steps": inner}:
                for _ in range(count):
                    play(socket, inner)
            case {"json": message}:
                socket.send(json.dumps(message))
            case {"text": {"repeat": piece, "count": count}}:
                socket.send(piece * count)
            case {"text": message}:
                socket.send(message)
            case {"binary": data}:
                socket.send(bytes.fromhex(data))
            case {"frame": data}:  # as it is, past the library's checks
                socket.socket.sendall(bytes.fromhex(data) + bytes(step.get("zeros", 0)))
            case {"until": kind}:
                Client(socket).until(kind)
            case {"leave": True}:
                socket.socket.close()
            case _:
                raise AssertionError(step)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda one: one["name"])
def test_a_conversation_ends_as_it_should(running: tuple[ScriptedEngine, Server], conversation: dict[str, Any]) -> None:
    engine, server = running
    url = server.url.replace("http", "ws") + "/v1/audio/speech/stream"
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(server.client())
        other.configure(seed=3)
        socket = stack.enter_context(connect(url, max_size=None, max_queue=None, proxy=None, close_timeout=1))
        if conversation.get("engine") == "paused":  # so that nothing is spoken while the messages arrive
            engine.max_frames = engine.status().frames
        with contextlib.suppress(ConnectionClosed, OSError):
            play(socket, conversation["steps"])
        match conversation["ends"]:
            case "alive":
                Client(socket).send("input.cancel")
                Client(socket).until("input.cancelled")
                assert Client(socket).say("Still here.").kinds[-1] == "session.done"
            case "left":
                pass
            case expected:
                code, _ = Client(socket).closed()
                assert code in (expected if isinstance(expected, list) else [expected])
        engine.max_frames = math.inf
        assert other.say("And I?").sound == spoken("And I?", 3)
    eventually(lambda: server.service.streams == 0 and len(server.service.connections) == 0)
    eventually(lambda: engine.status().slots_active + engine.status().queued == 0)
    assert len(server.service.ledger["request"]) == 0
