"""Clients that vanish: before they have asked, before the answer, in the middle of the sound; by hanging up, or by a
reset. For benchmarks/stress.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.uri import parse_uri

Way = Literal["http", "sse", "websocket"]
Moment = Literal["connected", "half asked", "asked", "waiting", "listening"]
WAYS: tuple[Way, ...] = ("http", "sse", "websocket")
MOMENTS: tuple[Moment, ...] = ("connected", "half asked", "asked", "waiting", "listening", "listening")

_MAX_SOUND_BYTES = 100_000  # that the most curious one listens to: some 2 s
_PATIENCE_S = 1.5  # of those who listen, whatever they have heard
_HURRY_S = 0.5  # of those who wait for nothing


@dataclass(frozen=True, slots=True)
class Vanishing:
    """One client: how it asks, and when and how it goes."""

    way: Way
    moment: Moment
    reset: bool  # else the connection ends as it should
    ends_text: bool  # over a WebSocket; else the server waits for more
    at_s: float
    wait_s: float
    sound_bytes: int


def draw_clients(count: int, within_s: float, seed: int = 0) -> list[Vanishing]:
    """Every way meets every moment; the rest is drawn."""
    draw = random.Random(seed)
    return [
        Vanishing(
            WAYS[index % len(WAYS)],
            MOMENTS[index // len(WAYS) % len(MOMENTS)],
            reset=draw.random() < 0.5,
            ends_text=draw.random() < 0.5,
            at_s=draw.uniform(0, within_s),
            wait_s=draw.uniform(0, _HURRY_S),
            sound_bytes=draw.randrange(1, _MAX_SOUND_BYTES),
        )
        for index in range(count)
    ]


async def vanish_all(url: str, clients: list[Vanishing], text: str, frames: int) -> Counter[str]:
    """How many had got so far: none (no byte), refused, or some of the answer."""
    outcomes = await asyncio.gather(*(_visit(url, client, text, frames) for client in clients))
    return Counter(outcomes)


async def _visit(url: str, client: Vanishing, text: str, frames: int) -> str:
    await asyncio.sleep(client.at_s)
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        got = await _behave(reader, writer, address.netloc, client, text, frames)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        got = b""
    finally:
        await _go(writer, reset=client.reset)
    return "refused" if b" 429 " in got or b'"overloaded"' in got else "heard" if got else "none"


async def _behave(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, client: Vanishing, text: str, frames: int
) -> bytes:
    if client.moment == "connected":
        return b""
    if client.way == "websocket":
        asked = await _open_socket(reader, writer, host, client, text, frames)
    else:
        asked = _request(host, client.way, text, frames)
    if client.moment == "half asked":
        asked = asked[: len(asked) // 2]
    writer.write(asked)
    await writer.drain()
    if client.moment == "waiting":
        await asyncio.sleep(client.wait_s)
    if client.moment != "listening":
        return b""
    got = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            while len(got) < client.sound_bytes and (more := await reader.read(65536)):
                got += more
    return got


def _request(host: str, way: Way, text: str, frames: int) -> bytes:
    body = {"input": text, "response_format": "pcm", "stream_format": "sse" if way == "sse" else "audio"}
    payload = json.dumps({**body, "max_new_tokens": frames + 1}).encode()
    head = ("POST /v1/audio/speech HTTP/1.1", f"host: {host}", "content-type: application/json")
    return "\r\n".join((*head, f"content-length: {len(payload)}", "", "")).encode() + payload


async def _open_socket(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, client: Vanishing, text: str, frames: int
) -> bytes:
    """-> what asks for speech, once the socket stands."""
    wire = ClientProtocol(parse_uri(f"ws://{host}/v1/audio/speech/stream"))
    wire.send_request(wire.connect())
    writer.writelines(wire.data_to_send())
    wire.receive_data(await reader.readuntil(b"\r\n\r\n"))
    messages = [{"type": "session.config", "max_new_tokens": frames + 1}, {"type": "input.text", "text": text}]
    messages += [{"type": "input.done"}] if client.ends_text else []
    for message in messages:
        wire.send_text(json.dumps(message).encode())
    return b"".join(wire.data_to_send())


async def _go(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:  # as a client that was killed, or a network that broke
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
