"""An answer that is made while it is sent: the client's leaving ends the making, and an error still has its status as
long as no byte has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from oscine.server.encoders import Encoder
from oscine.server.errors import error_response


class Out:
    """The way to the client."""

    def __init__(self, send: Send, stalled_s: float) -> None:
        self._send, self._stalled_s = send, stalled_s
        self.started = False

    async def start(self, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        if not data and more:
            return  # an empty piece would end the body
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise ConnectionResetError(f"nobody read the answer for {self._stalled_s:g} s") from None


class StreamingSpeechResponse(Response):
    """`make` writes the answer. Is it still at work when the client leaves, it is cancelled."""

    def __init__(self, make: Callable[[Out], Awaitable[None]], stalled_s: float) -> None:
        super().__init__()
        self._make, self._stalled_s = make, stalled_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        out = Out(send, self._stalled_s)
        making = asyncio.ensure_future(self._make(out))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({making, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            left = not making.done()
            making.cancel()
            await asyncio.wait({making, leaving})
        if left or making.cancelled():
            return
        error = making.exception()
        if error is None or isinstance(error, ConnectionError):
            return
        if not out.started:
            await error_response(error)(scope, receive, send)
        # Else the answer stays without its end: the connection is closed, and the client knows that a part is missing.


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class OffLoopEncoder:
    """An encoder whose work is done on a pool of threads, where it is work; closing waits for its turn."""

    def __init__(self, encoder: Encoder, pool: Executor | None) -> None:
        self._encoder, self._pool = encoder, pool  # no pool: so little to do that it is done here
        self._working: asyncio.Future[bytes] | None = None

    async def push(self, pcm: bytes) -> bytes:
        return await self._work(lambda: self._encoder.push(pcm))

    async def finish(self) -> bytes:
        return await self._work(self._encoder.finish)

    async def _work(self, work: Callable[[], bytes]) -> bytes:
        if self._pool is None:
            return work()
        self._working = asyncio.get_running_loop().run_in_executor(self._pool, work)
        return await asyncio.shield(self._working)

    def close(self) -> None:
        if self._working is not None and not self._working.done():
            self._working.add_done_callback(lambda _: self._encoder.close())
        else:
            self._encoder.close()
