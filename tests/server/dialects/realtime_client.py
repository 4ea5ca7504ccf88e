"""A client of Qwen's hosted realtime protocol for tests, on top of the live one."""

import base64
import contextlib
from collections.abc import Iterator
from typing import Any

from tests.server.live.live_client import Client, Received, Server

PATH = "/api-ws/v1/realtime?model=qwen3-tts-flash-realtime"


class RealtimeClient:
    def __init__(self, client: Client) -> None:
        self.raw = client

    def send(self, kind: str, **fields: Any) -> None:
        self.raw.send(kind, event_id="event_1", **fields)

    def update(self, **session: Any) -> dict[str, Any]:
        """Returns the answer."""
        self.send("session.update", session=session)
        return self.raw.until("session.updated", "error").events[-1]

    def append(self, *pieces: str) -> None:
        for piece in pieces:
            self.send("input_text_buffer.append", text=piece)

    def commit(self) -> None:
        self.send("input_text_buffer.commit")

    def say(self, *pieces: str) -> Received:
        self.append(*pieces)
        self.commit()
        return self.raw.until("response.done")


def sound(received: Received) -> bytes:
    return b"".join(base64.b64decode(event["delta"]) for event in received.all("response.audio.delta"))


@contextlib.contextmanager
def realtime(server: Server, path: str = PATH, **options: Any) -> Iterator[RealtimeClient]:
    """Connected, and past session.created."""
    with server.client(path, **options) as client:
        client.until("session.created")
        yield RealtimeClient(client)
