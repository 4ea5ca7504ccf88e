"""Reading a request's body, with limits on its size and on the time it takes."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from oscine.server.connections import BytesInFlight
from oscine.server.errors import ApiError

_BODY_S = 30.0  # for the first bytes; each further one adds its share
_MIN_BYTES_PER_S = 16 * 2**10


class RequestBody:
    """The `receive` of a request. Counts the body as it arrives, because content-length may be missing or wrong."""

    def __init__(self, headers: Headers, receive: Receive, max_bytes: int, in_flight: BytesInFlight) -> None:
        """Raises 413 if the request announces too much."""
        self._receive, self._max_bytes, self._in_flight = receive, max_bytes, in_flight
        self._begun_s = asyncio.get_running_loop().time()
        self._received = self._counted = 0
        self._complete = False
        content_length = headers.get("content-length", "")
        if content_length.isdecimal() and int(content_length) > max_bytes:
            raise self._too_large()

    async def __call__(self) -> Message:
        """Raises 408, 413 or 429."""
        if self._complete:
            return await self._receive()  # waits for the end of the connection
        try:
            async with asyncio.timeout_at(self._begun_s + _BODY_S + self._received / _MIN_BYTES_PER_S):
                received = await self._receive()
        except TimeoutError:
            message = f"the body did not arrive in time, only {self._received} bytes of it; send it again, faster"
            raise ApiError(408, message) from None
        self._complete = not received.get("more_body", False)
        self._received += len(received.get("body", b""))
        if self._received > self._max_bytes:
            raise self._too_large()
        uncounted = self._received - self._counted - BytesInFlight.SMALL
        if uncounted > 0:
            self._in_flight.add(uncounted)
            self._counted += uncounted
        return received

    def close(self) -> None:
        """The request has ended."""
        self._in_flight.remove(self._counted)
        self._counted = 0

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body exceeds the limit of {self._max_bytes / 2**20:.3g} MiB; split the request")
