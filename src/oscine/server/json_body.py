"""JSON request bodies: bounded, so that parsing does not delay other streams, and with a reason when parsing fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from oscine.server.errors import ApiError

# A quarter of a second of parsing on the event loop. Commas and brackets inside strings count too: they are few.
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
        return parse_json(await self.body(), self.headers.get("content-encoding", "identity")[:40])


def parse_json(body: bytes, content_encoding: str = "identity") -> Any:
    """Raises ApiError."""
    if content_encoding != "identity" or body.startswith(_GZIP):
        encoding = "gzip" if content_encoding == "identity" else content_encoding
        raise ApiError(400, f"compressed bodies ({encoding}) are not supported; send plain JSON")
    values = sum(map(body.count, (b",", b"[", b"{")))
    if values > _MAX_VALUES:
        message = f"the body has {values} commas and brackets, the limit is {_MAX_VALUES}; split the request"
        raise ApiError(413, message)
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos}"
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}, decoded as {error.encoding}"
    except RecursionError:
        reason = "lists or objects are nested too deeply"
    except ValueError:  # json.loads has no other reason for it
        reason = f"an integer has more than {sys.get_int_max_str_digits()} digits"
    raise ApiError(400, f"the body is not valid JSON ({reason}); send one JSON object in UTF-8")
