"""Servers on loopback that follow a script, on a clock that only the script moves.

The client under test reads the same clock. After each step the server waits until the client has read it, so measured
times equal the script's exactly, on any machine.
"""

import asyncio
import contextlib
import json
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from websockets.asyncio.server import ServerConnection, serve

from oscine_bench.exchange import Exchange
from oscine_bench.http_client import HttpClient
from oscine_bench.summary import RequestOutcome, analyze
from oscine_bench.targets import Target
from oscine_bench.websocket_client import WebSocketClient
from oscine_bench.workload import PlannedRequest

RATE_HZ = 24000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
REFUSED = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 13\r\n\r\nunknown voice"
HELLO = PlannedRequest("hello", 7, 0)


def speech(seconds: float, seed: int = 0) -> bytes:
    """Loud noise: audible, and without repetition."""
    samples = np.random.default_rng(seed).integers(-8000, 8000, round(seconds * RATE_HZ))
    return samples.astype("<i2").tobytes()


def silence(seconds: float) -> bytes:
    return bytes(2 * round(seconds * RATE_HZ))


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)


async def answer_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: str, answer: Callable[[dict], bytes], **facts
) -> None:
    """Serves one connection without a clock. POST requests get `answer`; GET requests get the list of models, with
    these facts about the model."""
    models = json.dumps({"data": [{"id": model, **facts}]}).encode()
    with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            body = await reader.readexactly(int(head.split("content-length: ")[1].split("\r")[0]))
            if head.startswith("GET"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(models), models))
            else:
                writer.write(answer(json.loads(body)))


class ScriptClock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._read = asyncio.Event()

    def __call__(self) -> float:
        self._read.set()
        return self.now_s

    async def move(self, at_s: float, act: Callable[[], object]) -> None:
        """Acts at that time, and waits until the client has read the clock."""
        self.now_s = at_s
        self._read.clear()
        act()
        await self._read.wait()


Step = tuple[float, bytes]  # time, bytes to write


@dataclass
class ScriptedServer:
    steps: Sequence[Step]
    clock: ScriptClock = field(default_factory=ScriptClock)
    hangs_up: bool = False  # after the last step
    resets: bool = False
    connections: int = 0
    requests: list[tuple[str, dict[str, str], dict]] = field(default_factory=list)  # first line, headers, JSON
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await self._read_request(reader)
                for at_s, piece in self.steps:
                    await self.clock.move(at_s, lambda piece=piece: writer.write(piece))
                if self.resets:
                    writer.transport.abort()
                if self.hangs_up or self.resets:
                    return

    async def _read_request(self, reader: asyncio.StreamReader) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((first, headers, json.loads(body or b"{}")))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[int]:
    """Ends when every client has closed its connection."""
    calls: set[asyncio.Task] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.add(asyncio.current_task())
        await handler(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if calls:
            await asyncio.wait(calls)


def request_script(
    steps: Sequence[Step],
    *,
    requests: int = 1,
    timeout_s: float = 30.0,
    hangs_up: bool = False,
    resets: bool = False,
    **target,
) -> tuple[list[Exchange], ScriptedServer]:
    """The exchanges of a client with a server that follows this script."""

    async def main() -> tuple[list[Exchange], ScriptedServer]:
        server = ScriptedServer(steps, hangs_up=hangs_up, resets=resets)
        async with listening(server.serve) as server.port:
            client = HttpClient(Target(url=server.url, **target), timeout_s=timeout_s, clock=server.clock)
            exchanges = []
            for _ in range(requests):
                server.clock.now_s = 0.0
                exchanges.append(await client.send(HELLO))
            await client.close()
        return exchanges, server

    return asyncio.run(main())


def outcome(steps: Sequence[Step], **options) -> RequestOutcome:
    exchanges, _ = request_script(steps, **options)
    target = {name: value for name, value in options.items() if name not in ("timeout_s", "hangs_up", "resets")}
    return analyze(exchanges[0], Target(url="http://127.0.0.1", **target))


def streamed(*pieces: tuple[float, bytes], end_s: float | None = None) -> list[Step]:
    """A chunked response: pieces of audio at their times."""
    steps = [(pieces[0][0], HEAD + chunk(pieces[0][1])), *((at_s, chunk(piece)) for at_s, piece in pieces[1:])]
    return [*steps, (steps[-1][0] if end_s is None else end_s, END)]


async def talk(
    script: Callable[[ServerConnection, ScriptClock, list[dict]], Awaitable[None]],
    *,
    after: str = "input.done",
    requests: int = 1,
    request: PlannedRequest = HELLO,
    **options,
) -> tuple[list[Exchange], list[dict]]:
    """The same over a WebSocket. `script` is called after every message of type `after`."""
    clock, received = ScriptClock(), []

    async def handle(socket: ServerConnection) -> None:
        async for message in socket:
            received.append(json.loads(message))
            if "session.ready" in received[-1].get("events", ()):
                await socket.send(json.dumps({"type": "session.ready"}))
            if received[-1]["type"] == after:
                await script(socket, clock, received)

    interval_s = options.pop("word_interval_s", None)
    async with serve(handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        target = Target(url=f"http://127.0.0.1:{port}", preset_name="oscine-ws", **options)
        client = WebSocketClient(target, timeout_s=600, clock=clock, word_interval_s=interval_s)
        exchanges = []
        for _ in range(requests):
            clock.now_s = 0.0
            exchanges.append(await client.send(request))
        await client.close()
    return exchanges, received


@contextlib.contextmanager
def in_a_thread(handler: Handler) -> Iterator[int]:
    """Serves in a thread, for clients that run their own event loop."""
    started: queue.Queue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def main() -> None:
        stop = asyncio.Event()
        async with listening(handler) as port:
            started.put((port, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    port, loop, stop = started.get()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
