"""An engine without a model, and a bare server in front of it; both for front_end.py.

The engine delivers ready-made frames, the first one at once, the others at a given pace. The rest of the time of a
request is the front end's. The bare server is the least that a front end can be: it passes the body of each request to
an engine process and writes what comes back, as `oscine serve` does. Its time is the client's, the kernel's and the
machine's; what a front end takes beyond it is its own.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
import multiprocessing
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Protocol, cast

import httptools

from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.config import ChunkConfig
from oscine.request import SpeechRequest
from oscine.server.http.listener import bind
from oscine.types import AudioChunk, ClipData, Command, Deliver, EngineStatus, Usage
from oscine.voice import Voice
from oscine_bench.benchmark import run_async

FRAME_SAMPLES = 1920
FRAME_BYTES = 2 * FRAME_SAMPLES
# At the start of every chunk: readings of the machine's monotonic clock, which all processes share.
STAMPS = struct.Struct("<3d")
_SLOTS = 4096


def frames_after_chunks(frames: int) -> Iterator[int]:
    """Frames sent after each chunk. Chunks grow as the engine's do: with the audio that was sent before."""
    sent = 0
    while sent < frames:
        sent += min(max(1, sent), ChunkConfig().steady_chunk_frames, frames - sent)
        yield sent


class BuildsPrompts(Protocol):
    def build(self, request: SpeechRequest) -> object: ...


@dataclass(slots=True)
class _Stream:
    deliver: Deliver
    arrived_s: float
    queued_s: float
    ends: list[int]  # frames after each chunk that was not sent yet, the next one last
    sent: int = 0


class InstantEngine:
    """Delivers from another thread, as the engine loop does. A request gets `max_new_tokens` - 1 frames, or one.

    Each chunk begins with three stamps: when the request arrived, when its prompt was built, when the chunk left.
    """

    def __init__(self, builder: BuildsPrompts | None = None, x_real_time: float = 1.0) -> None:
        self._builder, self._frame_s = builder, 1 / FRAME_RATE_HZ / x_real_time
        self._streams: queue.SimpleQueue[_Stream] = queue.SimpleQueue()
        threading.Thread(target=self._speak, daemon=True).start()

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        arrived_s = time.perf_counter()
        if self._builder:
            self._builder.build(request)
        ends = [*frames_after_chunks(max(1, (request.max_new_tokens or 0) - 1))]
        self._streams.put(_Stream(deliver, arrived_s, time.perf_counter(), ends[::-1]))

    def _speak(self) -> None:
        due: list[tuple[float, int, _Stream]] = []  # when the next chunk is complete
        for number in itertools.count():
            wait_s = max(0.0, due[0][0] - time.perf_counter()) if due else None
            try:
                stream = self._streams.get(timeout=wait_s)
            except queue.Empty:
                _, _, stream = heapq.heappop(due)
            self._send_chunk(stream)
            if stream.ends:
                heapq.heappush(due, (stream.queued_s + (stream.ends[-1] - 1) * self._frame_s, number, stream))

    def _send_chunk(self, stream: _Stream) -> None:
        first, stream.sent = stream.sent, stream.ends.pop()
        stamps = STAMPS.pack(stream.arrived_s, stream.queued_s, time.perf_counter())
        pcm = stamps + bytes((stream.sent - first) * FRAME_BYTES - STAMPS.size)
        stream.deliver(AudioChunk(pcm, first * FRAME_SAMPLES))
        if not stream.ends:
            stream.deliver(AudioChunk(b"", stream.sent * FRAME_SAMPLES, "stop", usage=Usage(1, stream.sent)))

    def send(self, utterance_id: str, command: Command) -> None: ...

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        raise NotImplementedError

    def preset(self, name: str) -> Voice:
        raise NotImplementedError

    def status(self) -> EngineStatus:
        return EngineStatus(True, _SLOTS, 0, 0, 0, 0.0)

    def stop(self, drain_s: float = 0.0) -> None: ...


def build_with_prompts(model: str, x_real_time: float, progress: Callable[[str, int, int], None]) -> InstantEngine:
    """Builds the prompts of this checkpoint's tokenizer, whose weights are not loaded."""
    from oscine.model.checkpoint import find_checkpoint
    from oscine.model.config import read_config
    from oscine.prompt.builder import PromptBuilder
    from oscine.prompt.tokenizer import Tokenizer

    folder = find_checkpoint(model)
    return InstantEngine(PromptBuilder(read_config(folder), Tokenizer.from_folder(folder)), x_real_time)


# --- the bare server ---

_HEADER = struct.Struct("<qi")  # number of a request and bytes that follow: its body, or one of its chunks
_RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ntransfer-encoding: chunked\r\n\r\n"


def speak(front: socket.socket) -> None:
    """The engine process. A chunk without audio ends a request."""
    engine = InstantEngine()

    def deliver(number: int, chunk: AudioChunk) -> None:
        front.sendall(_HEADER.pack(number, len(chunk.pcm)) + chunk.pcm)

    requests = front.makefile("rb")
    while header := requests.read(_HEADER.size):
        number, size = _HEADER.unpack(header)
        body = json.loads(requests.read(size))
        request = SpeechRequest(text=body["input"], max_new_tokens=body["max_new_tokens"])
        engine.enqueue(str(number), request, partial(deliver, number))


class Asked(Protocol):
    def ask(self, body: bytes, client: asyncio.Transport) -> None: ...


class BareServer:
    def __init__(self, engine: asyncio.StreamWriter) -> None:
        self._engine, self._numbers = engine, itertools.count()
        self._clients: dict[int, asyncio.Transport] = {}

    def ask(self, body: bytes, client: asyncio.Transport) -> None:
        number = next(self._numbers)
        self._clients[number] = client
        self._engine.write(_HEADER.pack(number, len(body)) + body)

    async def answer(self, chunks: asyncio.StreamReader) -> None:
        while True:
            number, size = _HEADER.unpack(await chunks.readexactly(_HEADER.size))
            client = self._clients[number] if size else self._clients.pop(number)
            client.write(b"%x\r\n%s\r\n" % (size, await chunks.readexactly(size)))


async def serve_until(stop: Pipe, listener: socket.socket, engine: socket.socket) -> None:
    """Serves until the other end of `stop` is closed."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(stop.fileno(), stopped.set)
    chunks, requests = await asyncio.open_connection(sock=engine)
    server = BareServer(requests)
    answering = loop.create_task(server.answer(chunks))
    async with await loop.create_server(lambda: Client(server), sock=listener):
        await stopped.wait()
    answering.cancel()
    requests.close()


class Client(asyncio.Protocol):
    """A client's connection. It answers each request with a head; `server` is asked for the chunks."""

    def __init__(self, server: Asked) -> None:
        self._server = server
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        self._body += piece

    def on_message_complete(self) -> None:
        self._transport.write(_RESPONSE)
        self._server.ask(bytes(self._body), self._transport)
        self._body.clear()


def serve_bare(pipe: Pipe) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = socket.socketpair()
    engine = context.Process(target=speak, args=(there,), daemon=True)
    engine.start()
    there.close()
    listener = bind("127.0.0.1", 0)
    pipe.send(listener.getsockname()[1])
    run_async(serve_until(pipe, listener, here))
    engine.join()
