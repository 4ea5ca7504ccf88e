"""The JSON that clients send: OpenAI's fields, vLLM-Omni's, ours. What a field means is decided in plan.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from oscine.server.errors import ApiError
from oscine.types import unknown_choice

FormatName = Literal["mp3", "wav", "pcm", "opus", "aac", "flac"]
Finite = Annotated[float, Field(allow_inf_nan=False)]

_MOST_NAME_CHARS = 80  # of a field that does not exist, in an answer
# Of a field of the other APIs that means nothing here: taken, and named in a header of the answer.
_Ignored = Field(None, description="Taken and ignored.", deprecated=True)


class _Strict(BaseModel):
    # Strict: "1" is no number and 1 no text. A wrong guess about what was meant would be heard, not seen.
    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


class VoiceId(_Strict):
    id: str


class Reference(_Strict):
    audio_path: str = Field(description="As `ref_audio`.")
    text: str | None = Field(None, description="As `ref_text`.")


class ExtraParams(_Strict):
    temperature: Finite | None = Field(default=None, ge=0)
    top_k: int | None = None
    top_p: Finite | None = None
    repetition_penalty: Finite | None = None
    max_new_tokens: int | None = None
    seed: int | None = None
    subtalker_temperature: Finite | None = Field(default=None, ge=0)
    subtalker_top_k: int | None = None
    subtalker_top_p: Finite | None = None


class VoiceOptions(_Strict):
    """Everything about a request but its text and how the answer travels."""

    model: str | None = Field(None, description="A served name, or one of OpenAI's; see /v1/models.")
    voice: str | VoiceId | None = Field(
        None,
        validation_alias=AliasChoices("voice", "speaker"),
        description="A preset, an uploaded voice, or one of OpenAI's names; see /v1/audio/voices.",
    )
    instructions: str | None = Field(None, max_length=4096, description="How to speak; VoiceDesign: who speaks.")
    language: str | None = Field(None, max_length=64, description="`auto`, or a language of the checkpoint.")
    response_format: FormatName | None = Field(None, description="mp3 unless given; all formats are streamed.")
    speed: Finite = Field(1.0, ge=0.25, le=4.0, description="Also while streaming; the pitch is kept.")
    sample_rate: Literal[8000, 16000, 22050, 24000, 44100, 48000] | None = None
    seed: int | None = Field(None, ge=0, lt=2**64, description="The same seed gives the same sound.")
    temperature: Finite | None = Field(None, ge=0, description="0: no randomness.")
    top_k: int | None = Field(None, ge=0)
    top_p: Finite | None = Field(None, gt=0, le=1)
    repetition_penalty: Finite | None = Field(None, gt=0)
    max_new_tokens: int | None = Field(None, ge=1, description="Frames of 80 ms, over the whole text.")
    non_streaming_mode: bool | None = Field(None, description="true: the whole text lies before the first frame.")
    trim_silence: bool | None = Field(None, description="Leave the silence before the first sound out.")
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    ref_audio: str | list[str] | None = Field(None, description="A clip to clone, as data: URL or base64.")
    ref_text: str | None = Field(None, max_length=4096, description="The words said in the clip.")
    x_vector_only_mode: bool | None = Field(None, description="The clip's timbre alone.")
    speaker_embedding: list[Finite] | None = Field(None, max_length=8192)
    references: list[Reference] | None = Field(None, max_length=1)
    word_timestamps: bool = Field(False, description="true is refused: there is no aligner here.")
    extra_params: ExtraParams | None = None

    initial_codec_chunk_frames: Any = _Ignored
    ref_audio_2: Any = _Ignored
    ambient_sound: Any = _Ignored
    duration_seconds: Any = _Ignored
    user: Any = _Ignored

    @property
    def ignored_fields(self) -> list[str]:
        fields = type(self).model_fields
        return sorted(name for name in self.model_fields_set if fields[name].deprecated)


class BatchItem(VoiceOptions):
    input: str = Field(description="The text to speak, of any length.")


class SpeechBody(BatchItem):
    stream: bool | None = Field(None, description="true alone: events (SSE). false: the whole file, with its length.")
    stream_format: Literal["audio", "sse"] | None = Field(None, description="audio: the bytes. sse: events.")

    @property
    def events(self) -> bool:
        return self.stream_format == "sse" or (self.stream is True and self.stream_format is None)

    @property
    def whole(self) -> bool:
        return self.stream is False and self.stream_format is None


class BatchBody(VoiceOptions):
    items: list[dict[str, Any]] = Field(
        min_length=1, description="Requests; what one of them leaves out, the fields beside `items` give."
    )


class LiveConfig(VoiceOptions):
    """`session.config` of the WebSocket."""

    type: Literal["session.config"]
    split_granularity: Any = _Ignored
    stream_audio: Any = _Ignored


FIELDS = {
    model: sorted({*model.model_fields, *(["speaker"] if "voice" in model.model_fields else [])})
    for model in (SpeechBody, BatchItem, BatchBody, LiveConfig)
}


def invalid_field(errors: list[Any], known: list[str]) -> ApiError:
    """The first of pydantic's errors, in our words."""
    first = errors[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "str", "VoiceId")]
    name = ".".join(where)[:_MOST_NAME_CHARS]
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", first["msg"])
        return ApiError(400, f"the body is not JSON ({reason}); send one JSON object")
    if first["type"] == "extra_forbidden" and len(where) == 1:
        return ApiError(422, unknown_choice("field", name, known), param=name)
    if first["type"] == "missing":
        return ApiError(422, f"{name or 'the body'} is missing; it is needed", param=name or None)
    if not where:
        return ApiError(422, "the body must be one JSON object, sent with content-type: application/json")
    given = first.get("input")
    shown = f", got {given!r}" if isinstance(given, int | float | bool | None) else ""
    return ApiError(422, f"{name}: {first['msg'][0].lower()}{first['msg'][1:]}{shown}", param=name)


def body_error(error: RequestValidationError) -> ApiError:
    known = FIELDS[BatchBody] if isinstance(error.body, dict) and "items" in error.body else FIELDS[SpeechBody]
    return invalid_field(list(error.errors()), known)
