"""Endpoints of /v1/audio/voices: list, upload, embedding, delete."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from oscine.capabilities import Needs
from oscine.errors import VoiceError
from oscine.server.audit import audit
from oscine.server.errors import ApiError, field_error
from oscine.server.inline_clips import too_large
from oscine.server.model_registry import ServedModel
from oscine.server.reference_clips import clip_hash
from oscine.server.schemas import MAX_EMBEDDING, StrictModel, invalid_field
from oscine.server.service import Service
from oscine.server.voice_store import NAME_PATTERN, StoredVoice, not_uploaded
from oscine.voice import Voice

_MAX_FIELD_BYTES = 2**18  # an embedding of 2048 numbers has some 45 kB
_MAX_OTHER_BYTES = 2**20  # of the body, beside the clip
_MAX_CONTENT_TYPE_CHARS = 256
_CHARSET = re.compile(r"charset[\s*]*=[\s\"']*([^\s\"';]*)")


class VoiceUpload(StrictModel):
    name: str = Field(
        description="Case-insensitive.",
        examples=["anna"],
        json_schema_extra={"pattern": f"^{NAME_PATTERN}$"},  # the store checks it, with a better message
    )
    consent: str = Field(
        min_length=1, max_length=1024, description="Who consented to the use of this voice, or a reference to it."
    )
    # An UploadFile; checked where it is read, because JSON schema has no such type.
    audio_sample: Any = Field(
        None,
        description="An audio file with 3 to 20 s of one speaker.",
        json_schema_extra={"type": "string", "format": "binary"},
    )
    ref_text: str | None = Field(None, max_length=4096, description="Its transcript: enables in-context cloning.")
    speaker_embedding: str | None = Field(
        None, description="Instead of a file: a JSON list of numbers, as the embedding endpoint returns it."
    )
    speaker_description: str | None = Field(None, max_length=4096, description="Stored and listed, otherwise unused.")
    model: str | None = Field(None, description="The Base model that clones it. Default: the first one.")


_UPLOAD_BODY = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": VoiceUpload.model_json_schema()}},
    },
}


class UploadedVoice(BaseModel):
    name: str
    consent: str | None = Field(description="None: the operator added the voice as a file.")
    created_at: int = Field(description="Unix seconds.")
    mode: Literal["in_context", "timbre"]
    embedding_dim: int
    ref_text: str | None
    speaker_description: str | None
    content_hash: str = Field(description="Equal for equal voices, on any server.")
    file_size: int = Field(description="Bytes on disk.")

    @staticmethod
    def of(stored: StoredVoice) -> UploadedVoice:
        return UploadedVoice(
            name=stored.name,
            consent=stored.consent,
            created_at=stored.created_at,
            mode=stored.mode,
            embedding_dim=len(stored.voice.speaker),
            ref_text=stored.voice.transcript,
            speaker_description=stored.speaker_description,
            content_hash=stored.voice.content_hash,
            file_size=stored.file_size,
        )


class VoiceList(BaseModel):
    voices: list[str] = Field(description="All voice names that the served models can use.")
    uploaded_voices: list[UploadedVoice]
    aliases: dict[str, str] = Field(description="OpenAI's voice names -> preset voices.")
    models: dict[str, list[str]] = Field(description="Each voice -> the models that can use it.")

    @staticmethod
    def of(models: Iterable[ServedModel], stored: Sequence[StoredVoice]) -> VoiceList:
        cards = [model.card for model in models]
        presets = dict.fromkeys(speaker for card in cards for speaker in card.speakers)
        users = {speaker: [card.name for card in cards if speaker in card.speakers] for speaker in presets}
        if any(card.clones for card in cards):
            for voice in stored:
                width = len(voice.voice.speaker)
                users[voice.name] = [card.name for card in cards if card.clones and card.speaker_width == width]
        aliases = [model.voices.aliases for model in models if model.voices.aliases]
        return VoiceList(
            voices=list(users),
            uploaded_voices=[UploadedVoice.of(voice) for voice in stored],
            aliases=aliases[0] if aliases else {},
            models=users,
        )


# vLLM-Omni's clients read `success`.
class VoiceUploaded(BaseModel):
    success: Literal[True] = True
    voice: UploadedVoice


class VoiceEmbedding(BaseModel):
    name: str
    embedding: list[float]


class VoiceDeleted(BaseModel):
    success: Literal[True] = True
    name: str
    deleted: Literal[True] = True


def voice_routes(service: Service, errors: Mapping[int | str, dict[str, Any]]) -> APIRouter:
    """`errors` describe the statuses for the OpenAPI document."""
    router = APIRouter(prefix="/v1/audio/voices", tags=["voices"])
    store = service.voice_store

    def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
        return {status: errors[status] for status in statuses}

    @router.get("", summary="All voices", responses=described(401))
    async def list_voices() -> VoiceList:
        stored = await asyncio.to_thread(store.all)
        return VoiceList.of([model for model in service.models if not model.removing], stored)

    @router.post(
        "",
        summary="Upload a voice",
        openapi_extra=_UPLOAD_BODY,
        responses=described(400, 401, 409, 413, 429, 503),
    )
    async def upload_voice(request: Request) -> VoiceUploaded:
        """Clones a voice from a clip and stores it under a name. Needs a Base checkpoint.

        Uploading the same clip or embedding again under the same name succeeds and changes nothing; another one under
        that name is a conflict.
        """
        upload, clip = await _read_upload(request, service.clip_policy.max_bytes)
        name = store.check_name(upload.name)
        model = service.models.route_needs(Needs(clone_param="audio_sample"), upload.model)
        source_hash = None
        if clip is not None:
            source_hash = await asyncio.to_thread(clip_hash, clip, upload.ref_text)
            known = await asyncio.to_thread(store.get, name)
            if known is not None and known.source_hash == source_hash:
                return VoiceUploaded(voice=UploadedVoice.of(known))
            with model.streams:
                voice = await _cloned(model, clip, upload.ref_text)
        else:
            voice = _from_embedding(upload.speaker_embedding or "")
            needs = Needs(clone_param="speaker_embedding", speaker_width=len(voice.speaker))
            service.models.route_needs(needs, upload.model)
        stored = await asyncio.to_thread(
            store.add,
            name,
            voice,
            consent=upload.consent,
            speaker_description=upload.speaker_description,
            source_hash=source_hash,
        )
        audit("voice stored", voice=stored.name, content_hash=stored.voice.content_hash, mode=stored.mode)
        return VoiceUploaded(voice=UploadedVoice.of(stored))

    @router.get("/{name}/embedding", summary="A voice's speaker embedding", responses=described(400, 401, 404))
    async def voice_embedding(name: str) -> VoiceEmbedding:
        """Of an uploaded voice; for `speaker_embedding`, here or on another server of this checkpoint."""
        stored = await asyncio.to_thread(store.get, name)
        if stored is None:
            raise not_uploaded(name)
        return VoiceEmbedding(name=stored.name, embedding=stored.voice.speaker.tolist())

    @router.delete("/{name}", summary="Delete an uploaded voice", responses=described(401, 404))
    async def delete_voice(name: str) -> VoiceDeleted:
        """Speech that already uses it continues."""
        deleted = await asyncio.to_thread(store.delete, name)
        audit("voice deleted", voice=deleted)
        return VoiceDeleted(name=deleted)

    return router


async def _cloned(model: ServedModel, clip: bytes, transcript: str | None) -> Voice:
    """Errors name the form's field."""
    try:
        return await model.cloned_voices.get(clip, transcript)
    except VoiceError as error:
        raise VoiceError(str(error), "audio_sample" if error.param == "ref_audio" else error.param) from None


def _from_embedding(listed: str) -> Voice:
    if listed.count(",") >= MAX_EMBEDDING:
        raise VoiceError(f"speaker_embedding has more than {MAX_EMBEDDING} numbers", "speaker_embedding")
    try:
        return Voice.from_embedding(json.loads(listed))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, VoiceError) else "it is not JSON"
        raise VoiceError(f"speaker_embedding must be a JSON list of numbers: {reason}", "speaker_embedding") from None


class _TooLargeError(MultiPartException):
    """A MultiPartException, because the parser closes its temporary files only for those."""


async def _read_upload(request: Request, max_clip_bytes: int) -> tuple[VoiceUpload, bytes | None]:
    """The fields and the clip, which is None if an embedding is given. Stops reading the body at the limit."""
    _check_content_type(request.headers.get("content-type", ""))
    stream = _limited(request, max_clip_bytes + _MAX_OTHER_BYTES)
    limits = {"max_files": 1, "max_fields": len(VoiceUpload.model_fields), "max_part_size": _MAX_FIELD_BYTES}
    try:
        form = await MultiPartParser(request.headers, stream, **limits).parse()
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


def _check_content_type(content_type: str) -> None:
    kind, _, parameters = content_type[:_MAX_CONTENT_TYPE_CHARS].lower().partition(";")
    if kind.strip() != "multipart/form-data" or len(content_type) > _MAX_CONTENT_TYPE_CHARS:
        raise ApiError(400, "voices are uploaded as multipart/form-data; see /docs for the fields")
    # The parser would decode fields as the client says: some of Python's codecs take seconds, or raise errors.
    if (charset := _CHARSET.search(parameters)) and charset[1] not in ("utf-8", "utf8"):
        raise ApiError(400, "the fields of an upload are UTF-8; leave the charset out")


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
    return upload
