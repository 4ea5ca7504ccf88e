"""Endpoints of /v1/audio/voices: list, upload, embedding, export, import, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from cachetools import LRUCache
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from oscine.errors import FieldError, NotFoundError, VoiceError
from oscine.server.api.voice_upload import (
    MAX_CONSENT_CHARS,
    MAX_TEXT_CHARS,
    UPLOAD_BODY,
    VoiceUpload,
    read_upload,
)
from oscine.server.http.forms import limited_body
from oscine.server.http.logs import audit
from oscine.server.http.openapi import described
from oscine.server.http.streaming_response import StreamingSpeechResponse, write_whole
from oscine.server.service import Service
from oscine.speech.capabilities import Needs
from oscine.speech.cloned_voices import ClonedVoice, clip_hash
from oscine.speech.consent_store import is_consent_id
from oscine.speech.models import ServedModel
from oscine.speech.voice_store import StoredVoice, VoicePage, not_uploaded, voice_id
from oscine.voice import Voice

_MAX_VOICE_BYTES = 2**20  # of a voice file: one of a minute has 100 kB
_MAX_NOTE_CHARS = {"consent": MAX_CONSENT_CHARS, "speaker_description": MAX_TEXT_CHARS, "mime_type": 64}
_MAX_REFERENCE_FRAMES = 750  # of an imported voice: a minute, the longest clip that is cloned
_LISTED_CHARS = 100  # of each text of a voice, in lists
_MAX_LISTED = 1000  # uploaded voices, in one list
_MAX_PAGES = 8  # that are kept: at most some 1 MiB each
_PageQuery = tuple[str | None, int, bool]
_OCTETS = {"content-type": "application/octet-stream"}
_VOICE_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class UploadedVoice(BaseModel):
    """OpenAI's `audio.voice`, with further fields."""

    id: str = Field(description="The name if it is plain (a-z 0-9 _ -), otherwise a hash of it.")
    object: Literal["audio.voice"] = "audio.voice"
    type: Literal["audio_sample"] = "audio_sample"
    name: str
    consent: str | None = Field(description="None: the operator added the voice as a file.")
    created_at: int = Field(description="Unix seconds.")
    mode: Literal["in_context", "timbre"]
    embedding_dim: int
    ref_text: str | None
    speaker_description: str | None
    mime_type: str | None = Field(description="Of the clip, as the client named it.")
    content_hash: str = Field(description="Equal for equal voices, on any server.")
    file_size: int = Field(description="Bytes on disk.")

    @staticmethod
    def of(stored: StoredVoice, max_chars: int | None = None) -> UploadedVoice:
        """Describes a stored voice. `max_chars`: longer texts of the client are cut."""

        def cut(text: str | None) -> str | None:
            return text if text is None or max_chars is None or len(text) <= max_chars else f"{text[:max_chars]}..."

        return UploadedVoice(
            id=stored.id,
            name=stored.name,
            consent=cut(stored.consent),
            created_at=stored.created_at,
            mode=stored.mode,
            embedding_dim=len(stored.voice.speaker),
            ref_text=cut(stored.voice.transcript),
            speaker_description=cut(stored.speaker_description),
            mime_type=stored.mime_type,
            content_hash=stored.voice.content_hash,
            file_size=stored.file_size,
        )


class ListedVoice(BaseModel):
    """An entry of OpenAI's lists."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    type: Literal["preset", "audio_sample"] = Field(description="A preset of a served model, or an uploaded voice.")
    name: str
    created_at: int = Field(description="Unix seconds; of a preset, when its model was loaded.")


class VoiceChoice(BaseModel):
    id: str
    name: str


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ListedVoice] = Field(description="The presets and the uploaded voices as OpenAI's API lists voices.")
    has_more: bool = Field(description="Whether more uploaded voices follow: `after` the last id.")
    voices: list[str] | list[VoiceChoice] = Field(
        description="All listed voices that the served models can use: their names, or with `format=objects` ids and "
        "names."
    )
    uploaded_voices: list[UploadedVoice] = Field(
        description=f"`consent`, `ref_text` and `speaker_description` are cut to {_LISTED_CHARS} characters."
    )
    aliases: dict[str, str] = Field(description="Other names -> voices: OpenAI's, and those that the operator chose.")
    models: dict[str, list[str]] = Field(description="Each listed voice -> the models that can use it.")

    @staticmethod
    def of(models: Sequence[ServedModel], page: VoicePage, *, objects: bool, first: bool) -> VoiceList:
        """Lists a page of voices. `first`: the first page, which has the presets too."""
        cards, stored = [model.card for model in models], page.voices
        presets: dict[str, int] = {}
        for model in models if first else ():
            for speaker in model.card.speakers:
                presets.setdefault(speaker, model.created_s)
        users = {speaker: [card.name for card in cards if speaker in card.speakers] for speaker in presets}
        if any(card.takes_voices for card in cards):
            for voice in stored:
                width = len(voice.voice.speaker)
                users[voice.name] = [card.name for card in cards if card.takes_voices and card.speaker_width == width]
        aliases = [model.voices.aliases for model in models if model.voices.aliases]
        ids = {voice.name: voice.id for voice in stored}
        return VoiceList(
            data=[
                *(ListedVoice(id=name, type="preset", name=name, created_at=at) for name, at in presets.items()),
                *(
                    ListedVoice(id=voice.id, type="audio_sample", name=voice.name, created_at=voice.created_at)
                    for voice in stored
                ),
            ],
            has_more=page.has_more,
            voices=[VoiceChoice(id=ids.get(name, name), name=name) for name in users] if objects else list(users),
            uploaded_voices=[UploadedVoice.of(voice, max_chars=_LISTED_CHARS) for voice in stored],
            aliases=aliases[0] if aliases else {},
            models=users,
        )


class VoiceUploaded(UploadedVoice):
    """OpenAI's clients read the fields, vLLM-Omni's `success` and `voice`."""

    success: Literal[True] = True
    voice: UploadedVoice
    warnings: list[str] = Field(description="What should be changed about the clip.")

    @staticmethod
    def answer(stored: StoredVoice, warnings: Sequence[str] = ()) -> VoiceUploaded:
        voice = UploadedVoice.of(stored)
        return VoiceUploaded(**dict(voice), voice=voice, warnings=list(warnings))


class VoiceEmbedding(BaseModel):
    name: str
    embedding: list[float]


class VoiceDeleted(BaseModel):
    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Literal[True] = True
    success: Literal[True] = True
    name: str


ListFormat = Annotated[
    Literal["names", "objects"] | None,
    Query(description="How `voices` is listed: names (the default), or objects with `id` and `name`."),
]
Limit = Annotated[int, Query(ge=1, le=_MAX_LISTED, description="Uploaded voices at once; presets do not count.")]
After = Annotated[str | None, Query(description="The last id of the previous page, which has the presets.")]
Overwrite = Annotated[bool, Query(description="Replaces the voice of this name.")]


class _ListPages:
    """The pages that were listed last, as JSON: a thousand voices take tens of milliseconds. For one thread."""

    def __init__(self) -> None:
        self._pages: LRUCache[_PageQuery, tuple[list[ServedModel], VoicePage, bytes]] = LRUCache(_MAX_PAGES)

    def of(self, models: list[ServedModel], page: VoicePage, query: _PageQuery) -> bytes:
        """`query`: after, limit, and whether voices are listed as objects."""
        found = self._pages.get(query)
        if found and found[:2] == (models, page):  # quick: the store returns the same objects while files are the same
            return found[2]
        data = VoiceList.of(models, page, objects=query[2], first=not query[0]).model_dump_json().encode()
        self._pages[query] = models, page, data
        return data


def voice_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/audio/voices", tags=["voices"])
    store, files = service.voice_store, service.ledger.pool("file")
    lists, pages = service.ledger.pool("voice_list"), _ListPages()

    def whole_response(data: bytes, headers: dict[str, str]) -> Response:
        return StreamingSpeechResponse(
            lambda writer: write_whole(writer, data, headers, service.ledger["response"]), service.config.stalled_s
        )

    @router.get("", summary="All voices", response_model=VoiceList, responses=described(400, 401))
    async def list_voices(format: ListFormat = None, limit: Limit = _MAX_LISTED, after: After = None) -> Response:
        models = [model for model in service.models if not model.removing]

        def listed() -> bytes:
            return pages.of(models, store.page(after, limit), (after, limit, format == "objects"))

        data = await lists.run(listed)
        return whole_response(data, {"content-type": "application/json"})

    @router.post(
        "", summary="Upload a voice", openapi_extra=UPLOAD_BODY, responses=described(400, 401, 409, 413, 429, 503)
    )
    async def upload_voice(request: Request) -> VoiceUploaded:
        """Clones a voice from a clip and stores it under a name. Needs a Base checkpoint.

        Uploading the same clip or embedding again under the same name succeeds and changes nothing; another one under
        that name is a conflict, unless `overwrite` is true.
        """
        upload, clip = await read_upload(request, service.clip_policy.max_bytes)
        name = store.check_name(upload.name)
        if is_consent_id(upload.consent):
            await _check_consent(service, upload.consent)
        model = service.models.route_needs(Needs(clone_param=upload.source), upload.model)
        if clip is None:
            (voice, warnings), source_hash = ClonedVoice(upload.embedded_voice()), None
            needs = Needs(clone_param=upload.source, speaker_width=len(voice.speaker))
            service.models.route_needs(needs, upload.model)
        else:
            source_hash = await files.run(clip_hash, clip, upload.ref_text)
            known = await files.run(store.get, name) if not upload.overwrites else None
            if known is not None and known.source_hash == source_hash:
                return VoiceUploaded.answer(known)
            service.check_ready(model)
            voice, warnings = await _clone(model, clip, upload)
        stored = await files.run(
            store.add,
            name,
            voice,
            consent=upload.consent,
            speaker_description=upload.speaker_description,
            source_hash=source_hash,
            mime_type=upload.mime_type,
            overwrite=upload.overwrites,
        )
        audit("voice stored", voice=stored.name, content_hash=stored.voice.content_hash, mode=stored.mode)
        return VoiceUploaded.answer(stored, warnings)

    @router.post(
        "/import",
        summary="Import a voice file",
        openapi_extra={"requestBody": {"required": True, "content": _VOICE_FILE}},
        responses=described(400, 401, 409, 413),
    )
    async def import_voice(
        request: Request, name: str | None = None, consent: str | None = None, overwrite: Overwrite = False
    ) -> VoiceUploaded:
        """The body is a file that the export of this or another server returned. `name` and `consent` replace those
        in the file."""
        # The hash of the clip is not taken over: a later upload of that clip must be compared with this voice.
        content = await limited_body(request, _MAX_VOICE_BYTES)
        voice, notes = await files.run(checked_import, content, name, consent)
        service.models.route_needs(Needs(clone_param="voice", speaker_width=len(voice.speaker)))
        stored = await files.run(
            store.add,
            notes["name"],
            voice,
            consent=notes["consent"],
            speaker_description=notes.get("speaker_description"),
            mime_type=notes.get("mime_type"),
            overwrite=overwrite,
        )
        audit("voice imported", voice=stored.name, content_hash=stored.voice.content_hash, mode=stored.mode)
        return VoiceUploaded.answer(stored)

    @router.get("/{name}/embedding", summary="A voice's speaker embedding", responses=described(400, 401, 404))
    async def voice_embedding(name: str) -> VoiceEmbedding:
        """The embedding of an uploaded voice; for `speaker_embedding`, here or on another server of this checkpoint."""
        stored = await _stored(service, name)
        return VoiceEmbedding(name=stored.name, embedding=stored.voice.speaker.tolist())

    @router.get(
        "/{name}/file",
        summary="Export a voice file",
        response_class=Response,
        responses={200: {"content": _VOICE_FILE}, **described(400, 401, 404)},
    )
    async def export_voice(name: str) -> Response:
        """The voice as a file: for the import of another server of this checkpoint, `oscine voices add`, or
        `Voice.load`."""
        stored, content = await files.run(store.export, name)
        audit("voice exported", voice=stored.name, content_hash=stored.voice.content_hash)
        disposition = f'attachment; filename="{stored.id}.safetensors"'  # an id has no quotes
        return whole_response(content, {**_OCTETS, "content-disposition": disposition})

    @router.get("/{name}", summary="An uploaded voice", responses=described(400, 401, 404))
    async def retrieve_voice(name: str) -> UploadedVoice:
        return UploadedVoice.of(await _stored(service, name))

    @router.delete("/{name}", summary="Delete an uploaded voice", responses=described(401, 404))
    async def delete_voice(name: str) -> VoiceDeleted:
        """Deletes a voice by its name or id. Speech that already uses it continues."""
        deleted = await files.run(store.delete, name)
        audit("voice deleted", voice=deleted)
        return VoiceDeleted(id=voice_id(deleted), name=deleted)

    return router


async def _stored(service: Service, name: str) -> StoredVoice:
    stored = await service.ledger.pool("file").run(service.voice_store.get, name)
    if stored is None:
        raise not_uploaded(name)
    return stored


async def _check_consent(service: Service, consent_id: str) -> None:
    """Raises NotFoundError for an id of a consent that does not exist; any other text may be a consent."""
    try:
        await service.ledger.pool("file").run(service.consent_store.get, consent_id)
    except NotFoundError as error:
        error.param = "consent"
        raise


async def _clone(model: ServedModel, clip: bytes, upload: VoiceUpload) -> ClonedVoice:
    try:
        with model.streams:
            return await model.cloned_voices.get(clip, upload.ref_text)
    except VoiceError as error:  # the clip has another name here than in a request for speech
        raise VoiceError(str(error), "audio_sample" if error.param == "ref_audio" else error.param) from error


def checked_import(content: bytes, name: str | None, consent: str | None) -> tuple[Voice, dict[str, str]]:
    """Returns the voice of a file, and its notes with this name and consent. Nothing in the file is trusted."""
    voice, notes = Voice.from_bytes(content)
    frames = 0 if voice.reference_codes is None else len(voice.reference_codes)
    if frames > _MAX_REFERENCE_FRAMES or len(voice.transcript or "") > MAX_TEXT_CHARS:
        limits = f"{_MAX_REFERENCE_FRAMES} reference frames and a transcript of {MAX_TEXT_CHARS} characters"
        raise VoiceError(f"the voice in the file is too long; the maximum is {limits}", "voice")
    given = {"name": name, "consent": consent}
    notes |= {field: value for field, value in given.items() if value}
    for field in given:
        if not notes.get(field, "").strip():
            raise FieldError(f"the file has no {field}; give it as ?{field}=", field)
    for field, max_chars in _MAX_NOTE_CHARS.items():
        if len(notes.get(field, "")) > max_chars:
            raise FieldError(f"{field} has more than {max_chars} characters", field)
    try:
        "".join((voice.transcript or "", *notes.values())).encode()
    except UnicodeEncodeError:  # half a surrogate pair: the list of voices could not be sent
        raise VoiceError("the file has text that is not Unicode; export the voice again", "voice") from None
    return voice, notes
