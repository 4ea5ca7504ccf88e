"""A client of the WebSocket, as the live tests use it: it says pieces of text, and gathers what it is told."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.server.scripted_engine import CARD, FRAME_SAMPLES, ScriptedEngine
from tests.server.serving import serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.service import Service
from oscine.types import ModelCard

HELD_SAMPLES = 120  # the last ones, until it is known whether another part follows


@dataclass
class Told:
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
        self._socket = socket

    def send(self, kind: str, **fields: Any) -> None:
        self.send_raw(json.dumps({"type": kind, **fields}))

    def send_raw(self, message: str | bytes) -> None:
        self._socket.send(message)

    def configure(self, **fields: Any) -> dict[str, Any]:
        """What it was answered."""
        self.send("session.config", **fields)
        return self.until("session.ready", "error").events[-1]

    def write(self, *pieces: str) -> None:
        for piece in pieces:
            self.send("input.text", text=piece)

    def say(self, *pieces: str) -> Told:
        self.write(*pieces)
        self.send("input.done")
        return self.until("session.done")

    def cancel(self, **fields: Any) -> Told:
        self.send("input.cancel", **fields)
        return self.until("input.cancelled")

    def until(self, *kinds: str) -> Told:
        told = Told()
        while not isinstance(message := self._hear(told), dict) or message["type"] not in kinds:
            pass
        return told

    def hear(self, frames: int) -> Told:
        told, left = Told(), 2 * (FRAME_SAMPLES * frames - HELD_SAMPLES)
        while left > 0:
            message = self._hear(told)
            left -= len(message) if isinstance(message, bytes) else 0
        return told

    def closed(self) -> tuple[int, Told]:
        """The code, and what was told before."""
        told = Told()
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._hear(told)
        code = self._socket.close_code
        assert code is not None
        return code, told

    def leave(self) -> None:
        self._socket.close()

    @property
    def subprotocol(self) -> str | None:
        return self._socket.subprotocol

    def _hear(self, told: Told) -> dict[str, Any] | bytes:
        message = self._socket.recv(timeout=20)
        told.messages.append(message if isinstance(message, bytes) else json.loads(message))
        return told.messages[-1]


@dataclass
class Server:
    url: str
    service: Service

    @contextlib.contextmanager
    def client(self, **options: Any) -> Iterator[Client]:
        url = self.url.replace("http", "ws") + "/v1/audio/speech/stream"
        with connect(url, max_size=None, proxy=None, **options) as socket:
            yield Client(socket)


@contextlib.contextmanager
def server_of(engine: ScriptedEngine, config: ServerConfig | None = None, card: ModelCard = CARD) -> Iterator[Server]:
    app = build_app(engine, card, config or ServerConfig(segment_chars=60))
    with serving(app) as url:
        yield Server(url, app.state.service)
