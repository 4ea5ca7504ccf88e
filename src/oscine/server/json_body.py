"""The JSON of a request's body: bounded, so that nobody's sound waits for its parsing, with a reason where it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from oscine.server.errors import ApiError

# A quarter of a second of parsing, which holds up everybody's sound. Counted in texts too: theirs are few.
_MAX_VALUES = 250_000
_GZIP = b"\x1f\x8b"


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


class _JsonRequest(Request):
    async def json(self) -> Any:
        packed = self.headers.get("content-encoding", "identity")
        return parse_json(await self.body(), packed="" if packed == "identity" else packed[:40])


def parse_json(body: bytes, packed: str = "") -> Any:
    """Raises ApiError. `packed`: what the body is said to be compressed with."""
    if packed or body.startswith(_GZIP):
        raise ApiError(400, f"the body is compressed ({packed or 'gzip'}), which is not taken; send the JSON as it is")
    values = sum(map(body.count, (b",", b"[", b"{")))
    if values > _MAX_VALUES:
        message = f"the body has {values} commas and brackets, the limit is {_MAX_VALUES}; send less at once"
        raise ApiError(413, message)
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos}"
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}, taken for {error.encoding}"
    except RecursionError:
        reason = "its lists or objects are nested too deeply"
    except ValueError:  # the one that is left
        reason = f"it holds a whole number of more than {sys.get_int_max_str_digits()} digits"
    raise ApiError(400, f"the body cannot be read as JSON ({reason}); send one JSON object in UTF-8")
