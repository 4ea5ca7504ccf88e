"""Reads uploads: forms with at most one file, and files alone. Everything has a limit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from oscine.errors import FieldError, RequestError, TooLargeError

_MAX_FIELD_BYTES = 2**18  # an embedding of 2048 numbers has some 45 kB
_MAX_OTHER_BYTES = 2**20  # of the body, beside the file
_MAX_URLENCODED_BYTES = 2**18
_MAX_ESCAPES = 2**15  # of an urlencoded body; each takes most of a microsecond
_MAX_CONTENT_TYPE_CHARS = 256
_MAX_MIME_TYPE_CHARS = 64
_CHARSET = re.compile(r"charset[\s*]*=[\s\"']*([^\s\"';]*)")
_MIME_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*")


class _LimitExceeded(MultiPartException):
    """A MultiPartException, because the parser closes its temporary files only for those."""


@contextlib.asynccontextmanager
async def read_form(
    request: Request, max_fields: int, too_large: TooLargeError, max_file_bytes: int
) -> AsyncGenerator[dict[str, UploadFile | str], None]:
    """Yields the fields of a form. Its file, at most one, is open inside the block. Stops reading the body at the
    limit. Empty fields are left out: web forms send them too. Raises RequestError, or `too_large`."""
    try:
        form = await _form(request, max_fields, max_file_bytes)
    except _LimitExceeded:
        raise too_large from None
    except MultiPartException as error:
        raise RequestError(f"the upload cannot be parsed: {error.message}") from None
    try:
        given = [(name, value) for name, value in form.multi_items() if isinstance(value, UploadFile) or value.strip()]
        values = dict(given)
        if len(values) < len(given):
            raise FieldError("a field is repeated; send each field once")
        if any(isinstance(value, UploadFile) and (value.size or 0) > max_file_bytes for value in values.values()):
            raise too_large
        yield values
    finally:
        await form.close()


def mime_type(file: UploadFile) -> str | None:
    """The media type of the file, as the client named it."""
    named = (file.content_type or "").partition(";")[0].strip().lower()
    return named if len(named) <= _MAX_MIME_TYPE_CHARS and _MIME_TYPE.fullmatch(named) else None


async def limited_body(request: Request, max_bytes: int) -> bytes:
    """Reads a body up to the limit. Raises TooLargeError, or RequestError if the client disconnects."""
    try:
        return b"".join([piece async for piece in _limited(request, max_bytes)])
    except _LimitExceeded:
        raise TooLargeError(f"the file exceeds the limit of {max_bytes / 2**20:.3g} MiB") from None
    except MultiPartException as error:
        raise RequestError(error.message) from None


async def _form(request: Request, max_fields: int, max_file_bytes: int) -> FormData:
    # A form without a file, such as one with an embedding, is urlencoded by most clients.
    if _checked_content_type(request.headers.get("content-type", "")) == "application/x-www-form-urlencoded":
        return _decoded(b"".join([piece async for piece in _limited(request, _MAX_URLENCODED_BYTES)]), max_fields)
    stream = _limited(request, max_file_bytes + _MAX_OTHER_BYTES)
    limits = {"max_files": 1, "max_fields": max_fields, "max_part_size": _MAX_FIELD_BYTES}
    parser = MultiPartParser(request.headers, stream, **limits)
    parser.spool_max_size = 2 * max_file_bytes  # never on the disk: its bytes are counted as those of the body
    return await parser.parse()


def _decoded(urlencoded: bytes, max_fields: int) -> FormData:
    if urlencoded.count(b"%") > _MAX_ESCAPES:
        raise MultiPartException(f"it has more than {_MAX_ESCAPES} percent-encoded bytes; send multipart/form-data")
    try:
        fields = parse_qsl(
            urlencoded.decode("ascii"), True, encoding="utf-8", errors="strict", max_num_fields=max_fields
        )
    except ValueError as error:  # includes UnicodeError
        raise MultiPartException(f"it is not a form of at most {max_fields} fields in UTF-8 ({error})") from None
    return FormData([*fields])


def _checked_content_type(content_type: str) -> str:
    kind, _, parameters = content_type[:_MAX_CONTENT_TYPE_CHARS].lower().partition(";")
    allowed = ("multipart/form-data", "application/x-www-form-urlencoded")
    if kind.strip() not in allowed or len(content_type) > _MAX_CONTENT_TYPE_CHARS:
        raise RequestError("files are uploaded as multipart/form-data; see /docs for the fields")
    # The parser would decode fields as the client says: some of Python's codecs take seconds, or raise errors.
    if (charset := _CHARSET.search(parameters)) and charset[1] not in ("utf-8", "utf8"):
        raise RequestError("the fields of an upload are UTF-8; leave the charset out")
    return kind.strip()


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    received = 0
    try:
        async for piece in request.stream():
            received += len(piece)
            if received > max_bytes:
                raise _LimitExceeded("")
            yield piece
    except ClientDisconnect:
        raise MultiPartException("the client disconnected") from None
