"""Clients of every kind for soak.py and stress.py: those that disconnect at any moment, with a proper close or a reset;
those that listen, interrupt, upload, and those whose requests are refused or broken."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.uri import parse_uri

from benchmarks.server_process import fetch, form
from oscine_bench.exchange import BenchClient, Exchange
from oscine_bench.http_client import HttpClient
from oscine_bench.summary import analyze
from oscine_bench.targets import Target
from oscine_bench.websocket_client import WebSocketClient
from oscine_bench.workload import PlannedRequest

# --- clients that vanish ---

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

    async def visit(self, url: str, text: str, frames: int) -> str:
        """Returns what the client had received: nothing, a refusal, or audio."""
        await asyncio.sleep(self.at_s)
        address = urlsplit(url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            got = await self._behave(reader, writer, address.netloc, text, frames)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            got = b""
        finally:
            await _disconnect(writer, reset=self.reset)
        return "refused" if b" 429 " in got or b'"overloaded"' in got else "audio" if got else "none"

    async def _behave(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, text: str, frames: int
    ) -> bytes:
        if self.moment == "connected":
            return b""
        if self.way == "websocket":
            request = await self._open_websocket(reader, writer, host, text, frames)
        else:
            request = _request(host, self.way, text, frames)
        if self.moment == "half sent":
            request = request[: len(request) // 2]
        writer.write(request)
        await writer.drain()
        if self.moment == "waiting":
            await asyncio.sleep(self.wait_s)
        if self.moment != "listening":
            return b""
        got = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while len(got) < self.sound_bytes and (more := await reader.read(65536)):
                    got += more
        return got

    async def _open_websocket(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, text: str, frames: int
    ) -> bytes:
        """Performs the handshake and returns the bytes of the request."""
        wire = ClientProtocol(parse_uri(f"ws://{host}/v1/audio/speech/stream"))
        wire.send_request(wire.connect())
        writer.writelines(wire.data_to_send())
        wire.receive_data(await reader.readuntil(b"\r\n\r\n"))
        messages = [{"type": "session.config", "max_new_tokens": frames + 1}, {"type": "input.text", "text": text}]
        messages += [{"type": "input.done"}] if self.ends_text else []
        for message in messages:
            wire.send_text(json.dumps(message).encode())
        return b"".join(wire.data_to_send())


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
    outcomes = await asyncio.gather(*(client.visit(url, text, frames) for client in clients))
    return Counter(outcomes)


def _request(host: str, way: Way, text: str, frames: int) -> bytes:
    body = {"input": text, "response_format": "pcm", "stream_format": "sse" if way == "sse" else "audio"}
    payload = json.dumps({**body, "max_new_tokens": frames + 1}).encode()
    head = ("POST /v1/audio/speech HTTP/1.1", f"host: {host}", "content-type: application/json")
    return "\r\n".join((*head, f"content-length: {len(payload)}", "", "")).encode() + payload


async def _disconnect(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:  # like a killed client or a broken network
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


# --- clients of a soak ---

ENDLESS_FRAMES = 900  # of clients that leave
SEEDS = 4  # each text is spoken again and again with the same seeds
_ANSWER_S = 120.0
# body -> status
_REFUSED: tuple[tuple[bytes, int], ...] = (
    (b"{", 400),
    (b"[]", 400),
    (b'{"input": ""}', 400),
    (b'{"input": "Hello.", "voice": "nobody-has-this-voice"}', 400),
    (b'{"input": "Hello.", "speed": -1}', 400),
    (b'{"input": "Hello.", "stream": "unknown"}', 400),
    (b'{"input": "' + b"a" * 300_000 + b'"}', 413),
)
_BROKEN = (
    b"NOT HTTP AT ALL\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-half: ",
    b"POST /v1/audio/speech HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n\r\n{",
    b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nx-long: " + b"y" * 70_000 + b"\r\n\r\n",
    b"GET /v1/audio/speech/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
)
_NOT_READY = 1013  # the close code
_HELD_S = 0.2  # a broken request is held open for so long


@dataclass(frozen=True, slots=True)
class SoakOutcome:
    kind: str
    begun_s: float
    ended_s: float
    result: str  # ok, or what happened
    index: int = 0  # of its text and seed
    first_audio_s: float | None = None
    deficit_s: float | None = None  # of playback
    digest: str = ""  # of the audio
    retry_after: str | None = None
    message: str = ""


class SoakClients:
    def __init__(self, url: str, texts: tuple[str, ...], frames: int | None) -> None:
        self._url, self._netloc, self._texts, self._frames = url, urlsplit(url).netloc, texts, frames
        targets = {
            "http": Target(url=url, frames=frames),
            "events": Target(url=url, frames=frames, sse=True),
            "wav": Target(url=url, frames=frames, response_format="wav"),
            "websocket": Target(url=url, frames=frames, preset_name="oscine-ws"),
        }
        self._listeners: dict[str, tuple[BenchClient, Target]] = {
            kind: (WebSocketClient(target, word_interval_s=0.01) if kind == "websocket" else HttpClient(target), target)
            for kind, target in targets.items()
        }
        self._vanishing = draw_clients(180, within_s=0.0)
        self._others: dict[str, Callable[[int], Awaitable[str]]] = {
            "leave": self._leave,
            "interrupt": self._interrupt,
            "refused": self._send_refused,
            "broken": self._send_broken,
            "upload": self._upload,
        }

    async def close(self) -> None:
        for client, _ in self._listeners.values():
            await client.close()

    async def act(self, kind: str, number: int) -> SoakOutcome:
        if kind in self._listeners:
            return await self.listen(kind, number % (len(self._texts) * SEEDS))
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S):
                result = await self._others[kind](number)
        except TimeoutError:
            result = f"no end within {_ANSWER_S:g} s"
        except ConnectionClosed as error:
            result = "not_ready" if error.rcvd and error.rcvd.code == _NOT_READY else f"closed: {error}"
        except (OSError, EOFError, ValueError) as error:
            result = f"{type(error).__name__}: {error}"
        return SoakOutcome(kind, begun_s, time.monotonic(), result)

    async def listen(self, kind: str, index: int) -> SoakOutcome:
        client, target = self._listeners[kind]
        begun_s = time.monotonic()
        exchange = await client.send(PlannedRequest(self._texts[index % len(self._texts)], index, index))
        outcome = analyze(exchange, target)
        failure, playback = outcome.failure, outcome.playback
        full = failure is not None and failure.message.startswith("The server is full")  # as a WebSocket says it
        return SoakOutcome(
            kind,
            begun_s,
            time.monotonic(),
            "overloaded" if full and not exchange.status else failure.kind if failure else "ok",
            index,
            outcome.timeline.first_audio_s if outcome.timeline else None,
            playback.deficit_s if playback else None,
            _digest(exchange),
            exchange.headers.get("retry-after"),
            failure.message if failure else "",
        )

    async def _leave(self, number: int) -> str:
        client = self._vanishing[number % len(self._vanishing)]
        await vanish_all(self._url, [client], self._texts[number % len(self._texts)], ENDLESS_FRAMES)
        return "ok"

    async def _interrupt(self, number: int) -> str:
        """A conversation with a barge-in, then a second utterance."""
        length = {} if self._frames is None else {"max_new_tokens": self._frames + 1}
        url = f"ws://{self._netloc}/v1/audio/speech/stream"
        async with connect(url, max_size=None, proxy=None) as socket:

            async def say(kind: str, **fields: object) -> None:
                await socket.send(json.dumps({"type": kind, **fields}))

            async def until(*kinds: str) -> str:
                while True:
                    message = await socket.recv()
                    if isinstance(message, bytes):
                        if "audio" in kinds:
                            return "audio"
                        continue
                    event = json.loads(message)
                    if event["type"] == "error":
                        return str(event["error"]["code"])
                    if event["type"] in kinds:
                        return str(event["type"])

            await say("session.config", seed=number, **length)
            for word in self._texts[number % len(self._texts)].split(" "):
                await say("input.text", text=f"{word} ")
            if (code := await until("audio")) != "audio":
                return code
            await say("input.cancel")
            if (code := await until("input.cancelled")) != "input.cancelled":
                return code
            await say("input.text", text="And once more.")
            await say("input.done")
            code = await until("session.done")
            return "ok" if code == "session.done" else code

    async def _send_refused(self, number: int) -> str:
        body, expected = _REFUSED[number % len(_REFUSED)]
        status = await self._post("/v1/audio/speech", body)
        if status == 503:
            return "not_ready"
        return "ok" if status == expected else f"status {status} instead of {expected}"

    async def _send_broken(self, number: int) -> str:
        reader, writer = await asyncio.open_connection(*self._netloc.split(":"))
        try:
            writer.write(_BROKEN[number % len(_BROKEN)])
            answer = b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HELD_S):
                    answer = await reader.read(65536)
            return "ok" if b" 5" not in answer[:13] else answer[:30].decode(errors="replace")
        finally:
            writer.close()

    async def _upload(self, number: int) -> str:
        """A voice made of numbers, and its removal. Only Base checkpoints take it; others refuse it clearly."""
        name = f"soak-{number}"
        vector = json.dumps([random.Random(number).uniform(-1, 1) for _ in range(1024)])
        fields = {"name": name, "consent": "random numbers, not a person", "speaker_embedding": vector}
        status = await self._post("/v1/audio/voices", *form(fields))
        if status == 200:
            status = await self._post(f"/v1/audio/voices/{name}", None, method="DELETE")
        return "not_ready" if status == 503 else "ok" if status in (200, 400) else f"status {status}"

    async def _post(self, *request: Any, **more: Any) -> int:
        status, _ = await asyncio.to_thread(fetch, self._url, *request, **more)
        return status


def _digest(exchange: Exchange) -> str:
    return hashlib.sha256(b"".join(exchange.body)).hexdigest()[:16] if exchange.failure is None else ""
