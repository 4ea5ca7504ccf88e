"""A client of the live WebSocket for tests: sends pieces of text and collects events and audio."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.service import Service
from oscine.types import ModelCard
from tests.server.described_messages import check_described
from tests.server.scripted_engine import CARD, FRAME_SAMPLES, ScriptedEngine
from tests.server.serving import serving
from tests.websocket import connect

HELD_SAMPLES = 120  # held back until it is known whether another segment follows


@dataclass
class Received:
    messages: list[dict[str, Any] | bytes] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if isinstance(message, dict)]

    @property
    def sound(self) -> bytes:
        return b"".join(message for message in self.messages if isinstance(message, bytes))

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (event,) = self.all(kind)
        return event


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        assert socket.request
        self._socket, self._path = socket, socket.request.path.partition("?")[0]

    def send(self, kind: str, **fields: Any) -> None:
        self.send_raw(json.dumps({"type": kind, **fields}))

    def send_raw(self, message: str | bytes) -> None:
        self._socket.send(message)

    def configure(self, **fields: Any) -> dict[str, Any]:
        """Returns the answer."""
        self.send("session.config", **{"events": ["session.ready", "audio.segment"], **fields})
        return self.until("session.ready", "error").events[-1]

    def write(self, *pieces: str) -> None:
        for piece in pieces:
            self.send("input.text", text=piece)

    def say(self, *pieces: str) -> Received:
        self.write(*pieces)
        self.send("input.done")
        return self.until("session.done")

    def cancel(self, **fields: Any) -> Received:
        self.send("input.cancel", **fields)
        return self.until("input.cancelled")

    def until(self, *kinds: str) -> Received:
        received = Received()
        while not isinstance(message := self._receive(received), dict) or message["type"] not in kinds:
            pass
        return received

    def receive_frames(self, frames: int) -> Received:
        received, left = Received(), 2 * (FRAME_SAMPLES * frames - HELD_SAMPLES)
        while left > 0:
            message = self._receive(received)
            left -= len(message) if isinstance(message, bytes) else 0
        return received

    def closed(self) -> tuple[int, Received]:
        """The close code, and everything received before it."""
        received = Received()
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._receive(received)
        code = self._socket.close_code
        assert code is not None
        return code, received

    def leave(self) -> None:
        self._socket.close()

    @property
    def subprotocol(self) -> str | None:
        return self._socket.subprotocol

    def _receive(self, received: Received) -> dict[str, Any] | bytes:
        message = self._socket.recv(timeout=600)
        received.messages.append(message if isinstance(message, bytes) else json.loads(message))
        if isinstance(message, str):
            check_described(self._path, received.messages[-1])
        return received.messages[-1]


@dataclass
class Server:
    url: str
    service: Service

    @contextlib.contextmanager
    def client(self, path: str = "/v1/audio/speech/stream", **options: Any) -> Iterator[Client]:
        url = self.url.replace("http", "ws") + path
        # No pings: the client reads nothing while a test waits for something else, not even answers to pings.
        with connect(url, max_size=None, proxy=None, ping_interval=None, **options) as socket:
            yield Client(socket)


@contextlib.contextmanager
def server_of(engine: ScriptedEngine, config: ServerConfig | None = None, card: ModelCard = CARD) -> Iterator[Server]:
    app = build_app(engine, card, config or ServerConfig(segment_chars=60))
    with serving(app) as url:
        yield Server(url, app.state.service)
