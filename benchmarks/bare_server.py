"""The least that a front end can be: it passes the body of each request to an engine process and writes what comes
back, as `oscine serve` does, with nothing else in between. Its time is the client's, the kernel's and the machine's;
what a front end takes beyond it is its own. For front_end.py.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import multiprocessing
import socket
import struct
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import cast

import httptools

from benchmarks.instant_engine import InstantEngine
from oscine.server.http.listener import bind
from oscine.types import AudioChunk, SpeechRequest
from oscine_bench.benchmark import run_async

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
    async with await loop.create_server(lambda: _Client(server), sock=listener):
        await stopped.wait()
    answering.cancel()
    requests.close()


class _Client(asyncio.Protocol):
    def __init__(self, server: BareServer) -> None:
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


def serve(pipe: Pipe) -> None:
    context = multiprocessing.get_context("spawn")
    here, there = socket.socketpair()
    engine = context.Process(target=speak, args=(there,), daemon=True)
    engine.start()
    there.close()
    listener = bind("127.0.0.1", 0)
    pipe.send(listener.getsockname()[1])
    run_async(serve_until(pipe, listener, here))
    engine.join()
