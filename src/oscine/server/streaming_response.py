"""HTTP responses that are written while they are produced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oscine.server.errors import error_response

_SLICE_BYTES = 2**20


class ResponseWriter:
    def __init__(self, send: Send, stalled_s: float) -> None:
        self._send, self._stalled_s = send, stalled_s
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
            try:
                async with asyncio.timeout(self._stalled_s):
                    await self._send(message)
            except TimeoutError:
                raise ConnectionResetError(f"the client read nothing for {self._stalled_s:g} s") from None


class StreamingSpeechResponse(Response):
    """Runs `produce`, which writes the response. Cancelled if the client disconnects first. `refuse` makes the response
    to an error before the first byte."""

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
        producing = asyncio.ensure_future(self._produce(writer))
        disconnect = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({producing, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            disconnected = not producing.done()
            producing.cancel()
            await asyncio.wait({producing, disconnect})
        if disconnected or producing.cancelled():
            return
        error = producing.exception()
        # After the first byte the response stays incomplete: the connection closes, and the client sees the loss.
        if error is not None and not isinstance(error, ConnectionError) and not writer.started:
            await self._refuse(error)(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
