"""Reads the form of a voice upload: its fields and its clip. Forms come from strangers, so everything has a limit."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import Field, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from oscine.errors import VoiceError
from oscine.server.errors import ApiError, field_error
from oscine.server.inline_clips import too_large
from oscine.server.schemas import MAX_EMBEDDING, StrictModel, invalid_field
from oscine.server.spellings import meant_boolean
from oscine.server.voice_names import MAX_NAME_CHARS
from oscine.voice import Voice

MAX_CONSENT_CHARS = 1024
MAX_TEXT_CHARS = 4096  # of a transcript or a description
_MAX_FIELD_BYTES = 2**18  # an embedding of 2048 numbers has some 45 kB
_MAX_OTHER_BYTES = 2**20  # of the body, beside the clip; an urlencoded one has no other
_MAX_CONTENT_TYPE_CHARS = 256
_MAX_MIME_TYPE_CHARS = 64
_CHARSET = re.compile(r"charset[\s*]*=[\s\"']*([^\s\"';]*)")
_MIME_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*")


class VoiceUpload(StrictModel):
    name: str = Field(
        description="Anything printable; case does not count.",
        examples=["anna"],
        json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_CHARS},  # the store checks it, with a better message
    )
    consent: str = Field(
        min_length=1,
        max_length=MAX_CONSENT_CHARS,
        description="Who consented to the use of this voice, or a reference to it.",
    )
    # An UploadFile; checked where it is read, because JSON schema has no such type.
    audio_sample: Any = Field(
        None,
        description="An audio file with 3 to 20 s of one speaker.",
        json_schema_extra={"type": "string", "format": "binary"},
    )
    ref_text: str | None = Field(
        None,
        max_length=MAX_TEXT_CHARS,
        description="Its transcript: enables in-context cloning. `auto`: the aligner writes it.",
    )
    speaker_embedding: str | None = Field(
        None, description="Instead of a file: a JSON list of numbers, as the embedding endpoint returns it."
    )
    speaker_description: str | None = Field(
        None, max_length=MAX_TEXT_CHARS, description="Stored and listed, otherwise unused."
    )
    model: str | None = Field(None, description="The Base model that clones it. Default: the first one.")
    overwrite: str | None = Field(
        None, description="true: replaces the voice of this name.", json_schema_extra={"enum": ["true", "false"]}
    )
    type: str | None = Field(
        None, description="OpenAI's field; only this value.", json_schema_extra={"enum": ["audio_sample"]}
    )

    @property
    def overwrites(self) -> bool:
        return bool(meant_boolean(self.overwrite))

    @property
    def source(self) -> Literal["audio_sample", "speaker_embedding"]:
        return "audio_sample" if self.audio_sample is not None else "speaker_embedding"

    @property
    def mime_type(self) -> str | None:
        """Of the clip, as the client named it."""
        named = (self.audio_sample.content_type if self.audio_sample is not None else None) or ""
        named = named.partition(";")[0].strip().lower()
        return named if len(named) <= _MAX_MIME_TYPE_CHARS and _MIME_TYPE.fullmatch(named) else None

    def embedded_voice(self) -> Voice:
        """Raises VoiceError."""
        listed = self.speaker_embedding or ""
        if listed.count(",") >= MAX_EMBEDDING:
            raise VoiceError(f"speaker_embedding has more than {MAX_EMBEDDING} numbers", "speaker_embedding")
        try:
            return Voice.from_embedding(json.loads(listed))
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, VoiceError) else "it is not JSON"
            message = f"speaker_embedding must be a JSON list of numbers: {reason}"
            raise VoiceError(message, "speaker_embedding") from None


UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": VoiceUpload.model_json_schema()},
            "application/x-www-form-urlencoded": {"schema": VoiceUpload.model_json_schema()},
        },
    },
}


class _TooLargeError(MultiPartException):
    """A MultiPartException, because the parser closes its temporary files only for those."""


async def read_upload(request: Request, max_clip_bytes: int) -> tuple[VoiceUpload, bytes | None]:
    """The fields and the clip, which is None if an embedding is given. Stops reading the body at the limit."""
    try:
        form = await _form(request, max_clip_bytes)
    except _TooLargeError:
        raise too_large(max_clip_bytes, "audio_sample") from None
    except MultiPartException as error:
        raise ApiError(400, f"the upload cannot be parsed: {error.message}") from None
    try:
        upload = _validated(form.multi_items())
        file = upload.audio_sample
        if file is not None and file.size > max_clip_bytes:
            raise too_large(max_clip_bytes, "audio_sample")
        return upload, None if file is None else await file.read()
    finally:
        await form.close()


async def limited_body(request: Request, max_bytes: int) -> bytes:
    """Stops reading at the limit. Raises 413, or 400 if the client disconnects."""
    try:
        return b"".join([piece async for piece in _limited(request, max_bytes)])
    except _TooLargeError:
        raise ApiError(413, f"the file exceeds the limit of {max_bytes / 2**20:.3g} MiB") from None
    except MultiPartException as error:
        raise ApiError(400, error.message) from None


async def _form(request: Request, max_clip_bytes: int) -> FormData:
    # A form without a file, such as one with an embedding, is urlencoded by most clients.
    if _checked_content_type(request.headers.get("content-type", "")) == "application/x-www-form-urlencoded":
        return _decoded(b"".join([piece async for piece in _limited(request, _MAX_OTHER_BYTES)]))
    stream = _limited(request, max_clip_bytes + _MAX_OTHER_BYTES)
    limits = {"max_files": 1, "max_fields": len(VoiceUpload.model_fields), "max_part_size": _MAX_FIELD_BYTES}
    return await MultiPartParser(request.headers, stream, **limits).parse()


def _decoded(urlencoded: bytes) -> FormData:
    max_fields = len(VoiceUpload.model_fields)
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
        raise ApiError(400, "voices are uploaded as multipart/form-data; see /docs for the fields")
    # The parser would decode fields as the client says: some of Python's codecs take seconds, or raise errors.
    if (charset := _CHARSET.search(parameters)) and charset[1] not in ("utf-8", "utf8"):
        raise ApiError(400, "the fields of an upload are UTF-8; leave the charset out")
    return kind.strip()


async def _limited(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    received = 0
    try:
        async for piece in request.stream():
            received += len(piece)
            if received > max_bytes:
                raise _TooLargeError("")
            yield piece
    except ClientDisconnect:
        raise MultiPartException("the client disconnected") from None


def _validated(items: list[tuple[str, UploadFile | str]]) -> VoiceUpload:
    # Web forms send empty fields too.
    given = [(name, value) for name, value in items if isinstance(value, UploadFile) or value.strip()]
    values = dict(given)
    if len(values) < len(given):
        raise field_error("a field is repeated; send each field once")
    kind = values.get("type", "audio_sample")
    if kind != "audio_sample":
        hint = "a VoiceDesign model takes the description of a voice with each request, as instructions"
        raise field_error(
            f"voices are made from a clip: type must be 'audio_sample', got {str(kind)[:40]!r}; {hint}", "type"
        )
    try:
        upload = VoiceUpload.model_validate(values)
    except ValidationError as error:
        raise invalid_field(list(error.errors())) from None
    if upload.audio_sample is not None and not isinstance(upload.audio_sample, UploadFile):
        raise field_error("audio_sample must be a file (a form part with a filename)", param="audio_sample")
    if (upload.audio_sample is None) == (upload.speaker_embedding is None):
        raise field_error("give either audio_sample or speaker_embedding", param="audio_sample")
    if upload.ref_text is not None and upload.audio_sample is None:
        raise field_error("ref_text is the transcript of a clip; give the clip as audio_sample", param="ref_text")
    if upload.overwrite is not None and meant_boolean(upload.overwrite) is None:
        raise field_error(f"overwrite must be true or false, got {upload.overwrite[:40]!r}", param="overwrite")
    return upload
