"""Endpoints of /v1/audio/voice_consents: OpenAI's recordings of consent, which a voice names by their ids."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import UploadFile

from oscine.audio.clips import read_clip
from oscine.audio.decoding.wire import REFERENCE_CLIP
from oscine.errors import FieldError, TooLargeError, VoiceError
from oscine.server.http.errors import invalid_field
from oscine.server.http.forms import mime_type, read_form
from oscine.server.http.json_body import JsonRoute
from oscine.server.http.logs import audit
from oscine.server.http.openapi import described
from oscine.server.schemas import StrictModel
from oscine.server.service import Service
from oscine.speech.consent_store import Consent

_MAX_NAME_CHARS = 256
_LANGUAGE = r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4}$"
Name = Annotated[str, Field(min_length=1, max_length=_MAX_NAME_CHARS, description="A label of the recording.")]


class ConsentUpload(StrictModel):
    name: Name
    language: str = Field(pattern=_LANGUAGE, description="Of the recording: a BCP 47 tag.", examples=["en-US"])
    # An UploadFile; checked where it is read, because JSON schema has no such type.
    recording: Any = Field(
        description="An audio file of at most a minute in which the speaker consents.",
        json_schema_extra={"type": "string", "format": "binary"},
    )


class ConsentUpdate(StrictModel):
    name: Name


class VoiceConsent(BaseModel):
    """OpenAI's `audio.voice_consent`."""

    object: Literal["audio.voice_consent"] = "audio.voice_consent"
    id: str
    name: str
    language: str
    created_at: int = Field(description="Unix seconds.")

    @staticmethod
    def of(stored: Consent) -> VoiceConsent:
        return VoiceConsent(id=stored.id, name=stored.name, language=stored.language, created_at=stored.created_at)


class ConsentList(BaseModel):
    object: Literal["list"] = "list"
    data: list[VoiceConsent] = Field(description="The newest first.")
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConsentDeleted(BaseModel):
    id: str
    object: Literal["audio.voice_consent"] = "audio.voice_consent"
    deleted: Literal[True] = True


_BODY = {
    "requestBody": {
        "required": True,
        "content": {"multipart/form-data": {"schema": ConsentUpload.model_json_schema()}},
    }
}


def consent_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio/voice_consents", tags=["voices"], route_class=JsonRoute)
    store, files = service.consent_store, service.ledger.pool("file")

    @router.post("", summary="Upload a consent recording", openapi_extra=_BODY, responses=described(400, 401, 409, 413))
    async def upload_consent(request: Request) -> VoiceConsent:
        """Stores the recording. A voice names its id as `consent`. What is said in it is not checked."""
        upload, recording = await _read_upload(request, service.clip_policy.max_bytes)
        await files.run(_check_recording, recording)
        media_type = mime_type(upload.recording)
        stored = await files.run(store.add, upload.name, upload.language, recording, media_type)
        audit("consent stored", consent=stored.id, sha256=stored.sha256)
        return VoiceConsent.of(stored)

    @router.get("", summary="Consent recordings", responses=described(400, 401))
    async def list_consents(
        after: Annotated[str | None, Query(description="The last id of the previous page.")] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> ConsentList:
        found = await service.ledger.pool("voice_list").run(store.all)
        ids = [consent.id for consent in found]
        if after is not None and after not in ids:
            raise FieldError(f"after must be the id of a consent recording, got {after[:80]!r}", "after")
        rest = found[ids.index(after) + 1 :] if after is not None else found
        data = [VoiceConsent.of(consent) for consent in rest[:limit]]
        first_id, last_id = (data[0].id, data[-1].id) if data else (None, None)
        return ConsentList(data=data, first_id=first_id, last_id=last_id, has_more=len(rest) > limit)

    @router.get("/{consent_id}", summary="A consent recording", responses=described(401, 404))
    async def retrieve_consent(consent_id: str) -> VoiceConsent:
        """Returns the name and language of the recording, not the recording itself."""
        return VoiceConsent.of(await files.run(store.get, consent_id))

    @router.post("/{consent_id}", summary="Rename a consent recording", responses=described(400, 401, 404, 413))
    async def update_consent(consent_id: str, body: ConsentUpdate) -> VoiceConsent:
        return VoiceConsent.of(await files.run(store.rename, consent_id, body.name))

    @router.delete("/{consent_id}", summary="Delete a consent recording", responses=described(401, 404))
    async def delete_consent(consent_id: str) -> ConsentDeleted:
        """Voices that name it stay. Delete them too if the consent is withdrawn."""
        await files.run(store.delete, consent_id)
        audit("consent deleted", consent=consent_id)
        return ConsentDeleted(id=consent_id)

    return router


async def _read_upload(request: Request, max_bytes: int) -> tuple[ConsentUpload, bytes]:
    message = f"the recording exceeds the limit of {max_bytes / 2**20:.3g} MiB; send less than a minute of speech"
    too_large = TooLargeError(message, "recording")
    async with read_form(request, len(ConsentUpload.model_fields), too_large, max_bytes) as fields:
        try:
            upload = ConsentUpload.model_validate(fields)
        except ValidationError as error:
            raise invalid_field(list(error.errors()), of_request=False) from None
        if not isinstance(upload.recording, UploadFile):
            raise FieldError("recording must be a file (a form part with a filename)", param="recording")
        return upload, await upload.recording.read()


def _check_recording(recording: bytes) -> None:
    """Raises VoiceError for a file that is not audio, or is too long."""
    try:
        read_clip(recording, REFERENCE_CLIP)
    except VoiceError as error:
        raise VoiceError(str(error), "recording") from error
