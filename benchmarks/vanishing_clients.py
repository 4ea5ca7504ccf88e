"""Clients that disconnect at any moment: before the request, before the response, during the audio; with a proper close
or a reset. For stress.py."""

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
Moment = Literal["connected", "half sent", "sent", "waiting", "listening"]
WAYS: tuple[Way, ...] = ("http", "sse", "websocket")
MOMENTS: tuple[Moment, ...] = ("connected", "half sent", "sent", "waiting", "listening", "listening")

_MAX_SOUND_BYTES = 100_000  # largest number of bytes that a client reads: about 2 s
_PATIENCE_S = 1.5  # longest time that a client reads
_HURRY_S = 0.5  # longest wait before a client leaves without reading


@dataclass(frozen=True, slots=True)
class VanishingClient:
    """How one client sends its request, and when and how it disconnects."""

    way: Way
    moment: Moment
    reset: bool  # instead of a proper close
    ends_text: bool  # WebSocket only; otherwise the server waits for more text
    at_s: float
    wait_s: float
    sound_bytes: int


def draw_clients(count: int, within_s: float, seed: int = 0) -> list[VanishingClient]:
    """Every combination of transport and moment; the rest is random."""
    draw = random.Random(seed)
    return [
        VanishingClient(
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


async def vanish_all(url: str, clients: list[VanishingClient], text: str, frames: int) -> Counter[str]:
    """Counts of what the clients had received: nothing, a refusal, or audio."""
    outcomes = await asyncio.gather(*(_run(url, client, text, frames) for client in clients))
    return Counter(outcomes)


async def _run(url: str, client: VanishingClient, text: str, frames: int) -> str:
    await asyncio.sleep(client.at_s)
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        got = await _behave(reader, writer, address.netloc, client, text, frames)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        got = b""
    finally:
        await _disconnect(writer, reset=client.reset)
    return "refused" if b" 429 " in got or b'"overloaded"' in got else "audio" if got else "none"


async def _behave(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    client: VanishingClient,
    text: str,
    frames: int,
) -> bytes:
    if client.moment == "connected":
        return b""
    if client.way == "websocket":
        request = await _open_websocket(reader, writer, host, client, text, frames)
    else:
        request = _request(host, client.way, text, frames)
    if client.moment == "half sent":
        request = request[: len(request) // 2]
    writer.write(request)
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


async def _open_websocket(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    host: str,
    client: VanishingClient,
    text: str,
    frames: int,
) -> bytes:
    """Performs the handshake and returns the bytes of the request."""
    wire = ClientProtocol(parse_uri(f"ws://{host}/v1/audio/speech/stream"))
    wire.send_request(wire.connect())
    writer.writelines(wire.data_to_send())
    wire.receive_data(await reader.readuntil(b"\r\n\r\n"))
    messages = [{"type": "session.config", "max_new_tokens": frames + 1}, {"type": "input.text", "text": text}]
    messages += [{"type": "input.done"}] if client.ends_text else []
    for message in messages:
        wire.send_text(json.dumps(message).encode())
    return b"".join(wire.data_to_send())


async def _disconnect(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:  # like a killed client or a broken network
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
