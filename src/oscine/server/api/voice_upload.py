"""Reads the form of a voice upload: its fields and its clip, each with a limit."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import Request
from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile

from oscine.errors import FieldError, VoiceError
from oscine.server.http.errors import invalid_field
from oscine.server.http.forms import mime_type, read_form
from oscine.server.schemas import MAX_EMBEDDING, StrictModel
from oscine.server.spellings import meant_boolean
from oscine.speech.clips import too_large
from oscine.speech.voice_store import MAX_NAME_CHARS
from oscine.voice import Voice

MAX_CONSENT_CHARS = 1024
MAX_TEXT_CHARS = 4096  # of a transcript or a description


class VoiceUpload(StrictModel):
    name: str = Field(
        description="Anything printable; case does not count.",
        examples=["anna"],
        json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_CHARS},  # the store checks it, with a better message
    )
    consent: str = Field(
        min_length=1,
        max_length=MAX_CONSENT_CHARS,
        description="The id of a consent recording, or any text: who consented to the use of this voice.",
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
        """The media type of the clip, as the client named it."""
        return None if self.audio_sample is None else mime_type(self.audio_sample)

    def embedded_voice(self) -> Voice:
        """Returns the voice of the embedding. Raises VoiceError."""
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


async def read_upload(request: Request, max_clip_bytes: int) -> tuple[VoiceUpload, bytes | None]:
    """Returns the fields and the clip, or None if an embedding is given. Stops reading the body at the limit."""
    max_fields = len(VoiceUpload.model_fields)
    async with read_form(request, max_fields, too_large(max_clip_bytes, "audio_sample"), max_clip_bytes) as fields:
        upload = _validated(fields)
        file = upload.audio_sample
        return upload, None if file is None else await file.read()


def _validated(values: dict[str, UploadFile | str]) -> VoiceUpload:
    kind = values.get("type", "audio_sample")
    if kind != "audio_sample":
        hint = "a VoiceDesign model takes the description of a voice with each request, as instructions"
        raise FieldError(
            f"voices are made from a clip: type must be 'audio_sample', got {str(kind)[:40]!r}; {hint}", "type"
        )
    try:
        upload = VoiceUpload.model_validate(values)
    except ValidationError as error:
        raise invalid_field(list(error.errors()), of_request=False) from None
    if upload.audio_sample is not None and not isinstance(upload.audio_sample, UploadFile):
        raise FieldError("audio_sample must be a file (a form part with a filename)", param="audio_sample")
    if (upload.audio_sample is None) == (upload.speaker_embedding is None):
        raise FieldError("give either audio_sample or speaker_embedding", param="audio_sample")
    if upload.ref_text is not None and upload.audio_sample is None:
        raise FieldError("ref_text is the transcript of a clip; give the clip as audio_sample", param="ref_text")
    if upload.overwrite is not None and meant_boolean(upload.overwrite) is None:
        raise FieldError(f"overwrite must be true or false, got {upload.overwrite[:40]!r}", param="overwrite")
    return upload
