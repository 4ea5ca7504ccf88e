"""The voices' four endpoints: list, upload, embedding, delete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from oscine.server.errors import ApiError
from oscine.server.reference_clips import clip_hash, too_large
from oscine.server.schemas import invalid_field
from oscine.server.voice_store import NAME_PATTERN, StoredVoice, not_uploaded
from oscine.types import ModelCard, VoiceError
from oscine.voice import Voice

if TYPE_CHECKING:
    from oscine.server.service import Service

_MAX_FIELD_BYTES = 2**18  # an embedding of 2048 numbers has some 45 kB
_OTHER_FIELDS_BYTES = 2**20  # of the body, beside the clip


class VoiceUpload(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(
        description="Case does not matter.",
        examples=["anna"],
        json_schema_extra={"pattern": f"^{NAME_PATTERN}$"},  # checked by the store, in words
    )
    consent: str = Field(
        min_length=1, max_length=1024, description="Who agreed to the use of this voice, or where that is written."
    )
    # A file; its type is checked where it is read. As JSON schema it can only be said like this.
    audio_sample: Any = Field(
        None,
        description="An audio file with 3 to 20 s of one speaker.",
        json_schema_extra={"type": "string", "format": "binary"},
    )
    ref_text: str | None = Field(None, max_length=4096, description="The words said in it: in-context cloning.")
    speaker_embedding: str | None = Field(
        None, description="Instead of a file: a JSON list of numbers, as the embedding endpoint gives it."
    )
    speaker_description: str | None = Field(None, max_length=4096, description="Kept and listed, nothing else.")


_UPLOAD_SCHEMA = VoiceUpload.model_json_schema()
_UPLOAD_BODY = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD_SCHEMA}}},
}


class UploadedVoice(BaseModel):
    name: str
    consent: str | None = Field(description="None: the operator put the voice there by hand.")
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
    voices: list[str] = Field(description="Every name that this checkpoint can speak with.")
    uploaded_voices: list[UploadedVoice]
    aliases: dict[str, str] = Field(description="OpenAI's names, and the voices that they stand for.")


# vLLM-Omni's clients look at `success`.
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
    store, card = service.voices.store, service.card

    def told(*statuses: int) -> dict[int | str, dict[str, Any]]:
        return {status: errors[status] for status in statuses}

    @router.get("", summary="All voices", responses=told(401))
    async def list_voices() -> VoiceList:
        stored = await asyncio.to_thread(store.all)
        usable = [*card.speakers, *(voice.name for voice in stored if card.clones)]
        uploaded = [UploadedVoice.of(voice) for voice in stored]
        return VoiceList(voices=usable, uploaded_voices=uploaded, aliases=service.voices.aliases)

    @router.post(
        "",
        summary="Upload a voice",
        openapi_extra=_UPLOAD_BODY,
        responses=told(400, 401, 409, 413, 422, 429, 503),
    )
    async def upload_voice(request: Request) -> VoiceUploaded:
        """Makes a voice from a clip, once, and keeps it under a name. Needs a Base checkpoint.

        The same clip or embedding under a name that has it already is no error, and what was stored first stays;
        another one is a conflict.
        """
        upload = await _read_upload(request, service.clip_policy.max_bytes)
        name = store.check_name(upload.fields.name)
        _check_clones(card)
        source_hash = None
        if upload.clip is not None:
            source_hash = await asyncio.to_thread(clip_hash, upload.clip, upload.fields.ref_text)
            known = store.get(name)
            if known is not None and known.source_hash == source_hash:
                return VoiceUploaded(voice=UploadedVoice.of(known))
            voice = await service.clip_voices.voice(upload.clip, upload.fields.ref_text)
        else:
            assert upload.fields.speaker_embedding is not None
            voice = _embedded(upload.fields.speaker_embedding, card)
        stored = await asyncio.to_thread(
            store.add,
            name,
            voice,
            consent=upload.fields.consent,
            speaker_description=upload.fields.speaker_description,
            source_hash=source_hash,
        )
        return VoiceUploaded(voice=UploadedVoice.of(stored))

    @router.get("/{name}/embedding", summary="A voice's speaker vector", responses=told(400, 401, 404))
    async def voice_embedding(name: str) -> VoiceEmbedding:
        """Of an uploaded voice; to be used as `speaker_embedding`, here or on another server of this checkpoint."""
        stored = store.get(name)
        if stored is None:
            raise not_uploaded(name)
        return VoiceEmbedding(name=stored.name, embedding=stored.voice.speaker.tolist())

    @router.delete("/{name}", summary="Delete an uploaded voice", responses=told(401, 404))
    async def delete_voice(name: str) -> VoiceDeleted:
        """Speech that has begun with it goes on."""
        return VoiceDeleted(name=await asyncio.to_thread(store.delete, name))

    return router


def _check_clones(card: ModelCard) -> None:
    if not card.clones:
        raise VoiceError(
            f"{card.name} ({card.kind}) cannot clone voices, so none can be uploaded; serve a Base checkpoint, "
            "such as Qwen3-TTS-12Hz-1.7B-Base",
            "audio_sample",
        )


def _embedded(listed: str, card: ModelCard) -> Voice:
    try:
        numbers = json.loads(listed)
        voice = Voice.from_embedding(numbers)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, VoiceError) else "it is not JSON"
        raise VoiceError(f"speaker_embedding must be a JSON list of numbers: {reason}", "speaker_embedding") from None
    if len(voice.speaker) != card.speaker_width:
        raise VoiceError(
            f"speaker_embedding has {len(voice.speaker)} numbers, this checkpoint's have {card.speaker_width}; "
            "make it with this checkpoint (GET /v1/audio/voices/{name}/embedding)",
            "speaker_embedding",
        )
    return voice


@dataclass(frozen=True, slots=True)
class _Upload:
    fields: VoiceUpload
    clip: bytes | None  # None: there is an embedding


class _TooLargeError(MultiPartException):
    """One of the parser's own errors, so that it gives up its temporary files."""


async def _read_upload(request: Request, max_bytes: int) -> _Upload:
    """Never more than the limit is taken from the network, and only a clip within it is read into memory."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "a voice is uploaded as multipart/form-data; see /docs for its fields")
    stream = _bounded(request, max_bytes + _OTHER_FIELDS_BYTES)
    parser = MultiPartParser(
        request.headers, stream, max_files=1, max_fields=len(VoiceUpload.model_fields), max_part_size=_MAX_FIELD_BYTES
    )
    try:
        form = await parser.parse()
    except _TooLargeError:
        raise too_large(max_bytes, "audio_sample") from None
    except MultiPartException as error:
        raise ApiError(400, f"the upload cannot be read: {error.message}") from None
    try:
        fields = _fields(form.multi_items())
        file = fields.audio_sample
        if file is not None and file.size > max_bytes:
            raise too_large(max_bytes, "audio_sample")
        return _Upload(fields, None if file is None else await file.read())
    finally:
        await form.close()


async def _bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    received = 0
    try:
        async for piece in request.stream():
            received += len(piece)
            if received > max_bytes:
                raise _TooLargeError("")
            yield piece
    except ClientDisconnect:
        raise MultiPartException("the client went away") from None


def _fields(items: list[tuple[str, UploadFile | str]]) -> VoiceUpload:
    # A web form sends its empty fields too.
    given = [(name, value) for name, value in items if isinstance(value, UploadFile) or value.strip()]
    values = dict(given)
    if len(values) < len(given):
        raise ApiError(422, "a field was given twice; give each once")
    try:
        fields = VoiceUpload.model_validate(values)
    except ValidationError as error:
        raise invalid_field(list(error.errors()), list(VoiceUpload.model_fields)) from None
    if fields.audio_sample is not None and not isinstance(fields.audio_sample, UploadFile):
        raise ApiError(422, "audio_sample must be a file (a part with a filename)", param="audio_sample")
    if (fields.audio_sample is None) == (fields.speaker_embedding is None):
        raise ApiError(422, "give either audio_sample or speaker_embedding", param="audio_sample")
    if fields.ref_text is not None and fields.audio_sample is None:
        raise ApiError(422, "ref_text are the words of a clip; give it as audio_sample", param="ref_text")
    return fields
