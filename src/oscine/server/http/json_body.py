"""Request bodies, with limits on their size and on the time they take; and JSON, bounded so that parsing does not delay
other streams, and with a reason when parsing fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from oscine.errors import RequestError, TimedOutError, TooLargeError
from oscine.process.resources import Account
from oscine.server.http.errors import invalid_field

BODY_S = 30.0  # for the first bytes; each further one adds its share
_MIN_BYTES_PER_S = 16 * 2**10
# Each limit stands for some 20 ms of parsing. A thread would not help: parsers hold the interpreter lock.
_MAX_BYTES = 4 * 2**20  # beside the clips, which are taken out before
MAX_DIGITS = 1_400_000  # 20 for each value, the most that a number needs
MAX_VALUES = 70_000  # embeddings of 2048 numbers in a batch of 32
LONG_STRING_BYTES = 2**16  # a longer one is taken out of a body that is too large otherwise
_MAX_STRINGS = 10_000  # of such a body
SLICE_BYTES = 2**20
_GZIP = b"\x1f\x8b"
_BACKSLASH = ord("\\")
_Body = TypeVar("_Body", bound=BaseModel)


class RequestBody:
    """The `receive` of a request. Counts the body as it arrives, because content-length may be missing or wrong."""

    def __init__(self, headers: Headers, receive: Receive, max_bytes: int, account: Account) -> None:
        """Raises TooLargeError if the request announces too much."""
        self._receive, self._max_bytes, self._held = receive, max_bytes, account.open()
        self._begun_s = asyncio.get_running_loop().time()
        self._received = 0
        self._complete = False
        content_length = headers.get("content-length", "")
        if content_length.isdecimal() and int(content_length) > max_bytes:
            raise self._too_large()

    async def __call__(self) -> Message:
        """Raises TimedOutError, TooLargeError or OverloadedError."""
        if self._complete:
            return await self._receive()  # waits for the end of the connection
        try:
            async with asyncio.timeout_at(self._begun_s + BODY_S + self._received / _MIN_BYTES_PER_S):
                received = await self._receive()
        except TimeoutError:
            message = f"the body did not arrive in time, only {self._received} bytes of it; send it again, faster"
            raise TimedOutError(message) from None
        self._complete = not received.get("more_body", False)
        self._received += len(received.get("body", b""))
        if self._received > self._max_bytes:
            raise self._too_large()
        self._held.resize(self._received)
        return received

    def close(self) -> None:
        """Uncounts the body, at the end of the request."""
        self._held.close()

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"the body exceeds the limit of {self._max_bytes / 2**20:.3g} MiB; split the request")


class JsonRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


class DirectJsonApp(Generic[_Body]):
    """The ASGI application of one path: reads a body as `model` and sends the response of `respond`. Without the
    framework's routing and injection of dependencies, which took a sixth of the front end's time for a request."""

    def __init__(self, model: type[_Body], respond: Callable[[_Body, Request], Response]) -> None:
        self._model, self._respond = model, respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = JsonRequest(scope, receive)
        response = self._respond(self._validated(await self._given(request)), request)
        await response(scope, receive, send)

    async def _given(self, request: Request) -> Any:
        """Reads a body as FastAPI does: a body of another type is bytes, which no model takes."""
        body = await request.body()
        if not body:
            raise invalid_field([{"type": "missing", "loc": ("body",), "input": None}])
        return await request.json() if _is_json(request.headers.get("content-type", "")) else body

    def _validated(self, given: Any) -> _Body:
        try:
            return self._model.model_validate(given)
        except ValidationError as error:
            raise invalid_field(error.errors(include_url=False)) from None


def _is_json(content_type: str) -> bool:
    kind, _, subtype = content_type.partition(";")[0].strip().lower().partition("/")
    return kind == "application" and (subtype == "json" or subtype.endswith("+json"))


class JsonRequest(Request):
    async def body(self) -> bytes:
        """The same as Starlette's, without its asynchronous generator."""
        if not hasattr(self, "_body"):
            pieces: list[bytes] = []
            more = True
            while more:
                message = await self.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                pieces.append(message.get("body", b""))
                more = message.get("more_body", False)
            self._body = b"".join(pieces)
        return self._body

    async def json(self) -> Any:
        content_encoding = self.headers.get("content-encoding", "identity")[:40]
        body = await self.body()
        if content_encoding != "identity" or body.startswith(_GZIP):
            encoding = "gzip" if content_encoding == "identity" else content_encoding
            raise RequestError(f"compressed bodies ({encoding}) are not supported; send plain JSON")
        service = self.app.state.service
        # One large body after the other: a hundred parsed in one round of the event loop would hold it for seconds.
        async with service.large_bodies if len(body) > LONG_STRING_BYTES else contextlib.nullcontext():
            return await read_json(body, service.clip_policy.max_chars)


async def read_json(body: bytes, max_string_bytes: int) -> Any:
    """Yields to the event loop between steps that take milliseconds. Raises RequestError."""
    if len(body) > LONG_STRING_BYTES:
        await asyncio.sleep(0)  # joining the body took its time
    if len(body) <= _MAX_BYTES:
        parsed = parse_json(body)
    else:
        taken = TakenStrings()
        rest = await taken.take(body, max_string_bytes)
        parsed = taken.put_back(parse_json(rest))
    if len(body) > LONG_STRING_BYTES:
        await asyncio.sleep(0)  # validating takes time too
    return parsed


def parse_json(body: bytes, what: str = "body") -> Any:
    """Parses JSON within the limits. Raises RequestError."""
    if len(body) > _MAX_BYTES:
        message = f"the {what} has more than {_MAX_BYTES >> 20} MiB beside its clips; split the request"
        raise TooLargeError(message)
    # Those in strings are counted too; they are few.
    values = sum(map(body.count, (b",", b"[", b"{"))) + body.count(b'"') // 2
    if values > MAX_VALUES:
        message = f"the {what} has {values} commas, brackets and strings, the limit is {MAX_VALUES}; split the request"
        raise TooLargeError(message)
    if len(body) > MAX_DIGITS and (digits := len(body) - len(body.translate(None, b"0123456789"))) > MAX_DIGITS:
        message = f"the {what} has {digits} digits, the limit is {MAX_DIGITS}; round its numbers, or split the request"
        raise TooLargeError(message)
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
    raise RequestError(f"the {what} is not valid JSON ({reason}); send one JSON object in UTF-8")


class TakenStrings:
    """Takes the long plain strings, which are clips, out of a body. Placeholders stand for them while the rest is
    parsed."""

    def __init__(self) -> None:
        self._strings: dict[str, str] = {}  # by placeholder

    async def take(self, body: bytes, max_string_bytes: int) -> bytes:
        """Returns the rest of the body. Raises TooLargeError for a string that is too long for a clip."""
        token, pieces, copied = secrets.token_hex(16), [], 0
        for begin, end in _long_strings(body):
            if end - begin > max_string_bytes:
                size, limit = (end - begin) / 2**20, max_string_bytes / 2**20
                message = f"the body has a string of {size:.3g} MiB, the limit for a clip is {limit:.3g} MiB; send less"
                raise TooLargeError(message)
            string = await _plain_string(body, begin, end)
            if string is not None:
                placeholder = f"{token}{len(self._strings)}"
                self._strings[placeholder] = string
                pieces += [body[copied:begin], placeholder.encode()]
                copied = end
        return b"".join((*pieces, body[copied:]))

    def put_back(self, parsed: Any) -> Any:
        containers = [parsed := self._original(parsed)]
        for container in containers:  # grows on the way
            if isinstance(container, dict):
                for placeholder in self._strings.keys() & container.keys():
                    container[self._strings[placeholder]] = container.pop(placeholder)
                items = list(container.items())
            else:
                items = list(enumerate(container)) if isinstance(container, list) else []
            for key, value in items:
                if isinstance(value, str):
                    container[key] = self._original(value)
                elif isinstance(value, dict | list):
                    containers.append(value)
        return parsed

    def _original(self, value: Any) -> Any:
        return self._strings.get(value, value) if isinstance(value, str) else value


def _long_strings(body: bytes) -> Iterator[tuple[int, int]]:
    """Yields where the contents of long strings begin and end."""
    begin = body.find(b'"') + 1
    for _ in range(_MAX_STRINGS):
        end = _string_end(body, begin)
        if begin == 0 or end < 0:
            return
        if end - begin > LONG_STRING_BYTES:
            yield begin, end
        begin = body.find(b'"', end + 1) + 1


def _string_end(body: bytes, begin: int) -> int:
    """Returns the next quote that is not escaped, or -1 if there is none, or if finding it takes long."""
    end = begin - 1
    for _ in range(_MAX_STRINGS):
        end = body.find(b'"', end + 1)
        if end < 0 or end == begin or body[end - 1] != _BACKSLASH:
            return end
        before = body[max(begin, end - 64) : end]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes == 64:
            return -1
        if backslashes % 2 == 0:
            return end
    return -1


async def _plain_string(body: bytes, begin: int, end: int) -> str | None:
    """Decodes a string. Returns None if it has letters beyond ASCII, or escapes other than `\\/`, which some clients
    write in base64."""
    pieces = []
    while begin < end:
        cut = min(begin + SLICE_BYTES, end)
        if body[cut - 1] == _BACKSLASH:
            cut = min(cut + 1, end)
        piece = body[begin:cut]
        if b"\\" in piece:
            piece = piece.replace(b"\\/", b"/")
        if b"\\" in piece or not piece.isascii():
            return None
        pieces.append(piece.decode("ascii"))
        begin = cut
        await asyncio.sleep(0)
    return "".join(pieces)
