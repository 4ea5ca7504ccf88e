"""HTTP responses that are written while they are produced, and whole ones that are written in slices."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from oscine.errors import clear_tracebacks
from oscine.process.resources import Account
from oscine.server.http.errors import error_response

_SLICE_BYTES = 2**20
_BASE64_SLICE_BYTES = 3 * 2**18  # a multiple of 3, as base64 needs


class ResponseWriter:
    """Writes a response in slices, and ends it when the client stops reading. One timer serves all writes: one for each
    would be started and cancelled with every chunk."""

    def __init__(self, send: Send, stalled_s: float) -> None:
        self._send, self._stalled_s = send, stalled_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: tuple[asyncio.Task[object], float] | None = None  # the task, and since when
        self._stalled = False
        self.started = False

    async def start(self, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        if not data and more:
            return
        # In slices: the server would copy a large file several times, and count the time to send it as one stall.
        for begin in range(0, len(data) or 1, _SLICE_BYTES):
            end = begin + _SLICE_BYTES
            message = {"type": "http.response.body", "body": data[begin:end], "more_body": more or end < len(data)}
            await self._send_watched(message)

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    async def _send_watched(self, message: Message) -> None:
        task = asyncio.current_task()
        assert task
        self._writing = task, self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._stalled_s, self._look)
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if not self._stalled or task.uncancel():  # cancelled for another reason
                raise
            self._stalled = False
            raise ConnectionResetError(f"the client read nothing for {self._stalled_s:g} s") from None
        finally:
            self._writing = None

    def _look(self) -> None:
        self._timer = None
        if self._writing is None:
            return  # the next write starts the timer
        task, since_s = self._writing
        if self._loop.time() >= since_s + self._stalled_s:
            self._stalled = True
            task.cancel()
        else:
            self._timer = self._loop.call_at(since_s + self._stalled_s, self._look)


class StreamingSpeechResponse(Response):
    """Runs `produce`, which writes the response. Cancelled if the client disconnects first. `refuse` makes the response
    to an error before the first byte, and logs one that is unexpected; `produce` logs those after it."""

    def __init__(
        self,
        produce: Callable[[ResponseWriter], Awaitable[None]],
        stalled_s: float,
        refuse: Callable[[BaseException], Response] = error_response,
    ) -> None:
        super().__init__()
        self._produce, self._stalled_s, self._refuse = produce, stalled_s, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = ResponseWriter(send, self._stalled_s)
        task = asyncio.current_task()
        assert task
        disconnect = asyncio.create_task(_cancel_at_disconnect(receive, task))
        error: Exception | None = None
        try:
            await self._produce(writer)
        except asyncio.CancelledError:
            if not disconnect.done() or task.uncancel():  # cancelled for another reason
                raise
        except Exception as raised:
            error = raised
        finally:
            disconnect.cancel()
            writer.close()
        # After the first byte the response stays incomplete: the connection closes, and the client sees the loss.
        if error is None:
            return
        refused = None if isinstance(error, ConnectionError) or writer.started else self._refuse(error)
        clear_tracebacks(error)
        if refused:
            await refused(scope, receive, send)


async def write_whole(writer: ResponseWriter, data: bytes, headers: Mapping[str, str], unread: Account) -> None:
    """Writes a response with all of its body, which counts as unread until the last slice is sent. Raises
    OverloadedError, before the first byte, if clients leave too much unread."""
    with unread.hold(len(data)):
        await writer.start({**headers, "content-length": str(len(data))})
        await writer.write(data, more=False)


async def _cancel_at_disconnect(receive: Receive, task: asyncio.Task[object]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel()


async def write_with_audio(writer: ResponseWriter, fields: str, name: str, audio: bytes) -> None:
    """Writes a JSON object with one more field."""
    await writer.write(f'{fields[:-1]},"{name}":"'.encode())
    await write_base64(writer, audio)
    await writer.write(b'"}')


async def write_base64(writer: ResponseWriter, audio: bytes) -> None:
    """Writes base64 in slices: hours of audio at once would hold the event loop."""
    for begin in range(0, len(audio), _BASE64_SLICE_BYTES):
        await writer.write(base64.b64encode(audio[begin : begin + _BASE64_SLICE_BYTES]))
