"""The JSON that clients send: OpenAI's fields, vLLM-Omni's, ours. What a field means is decided in plan.py."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from oscine.server.errors import ApiError
from oscine.types import unknown_choice

FormatName = Literal["mp3", "wav", "pcm", "opus", "aac", "flac"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
# How codes are drawn, roughly: types.py has the exact limits, and plan.py asks there.
Temperature = Annotated[Finite, Field(ge=0)]
TopK = Annotated[int, Field(ge=0, lt=2**31)]
TopP = Annotated[Finite, Field(gt=0, le=1)]
Penalty = Annotated[Finite, Field(gt=0)]
MaxNewTokens = Annotated[int, Field(ge=2, lt=2**63)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
# The first bad entry of a list is told, the others not even looked at: there may be a million.
Clips = Annotated[list[str], Field(fail_fast=True)]
Embedding = Annotated[list[Finite], Field(max_length=8192, fail_fast=True)]
# Looked at one by one, later: a bad item does not harm the others.
Item = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]

_MAX_NAME_CHARS = 80  # of what was given, in an answer
# Of a field of the other APIs that means nothing here: taken, and named in a header of the answer.
_Ignored = Field(None, description="Taken and ignored.", deprecated=True)


class StrictModel(BaseModel):
    # Strict: "1" is no number and 1 no text. A wrong guess about what was meant would be heard, not seen.
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        """Before any field is looked at: a misspelt name is the reason why another one is missing. And a million
        unknown names are one error."""
        known = known_fields(cls)
        unknown = next((name for name in given if name not in known), None) if isinstance(given, dict) else None
        if unknown is not None:
            name = shown_name(unknown)
            raise _bad_name(name, unknown_choice("field", name, known))
        return given


@functools.cache
def known_fields(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(model.model_fields) | ({"speaker"} if "voice" in model.model_fields else set())


def shown_name(name: str) -> str:
    """As it may stand in an answer: short, and nothing but characters."""
    return name[:_MAX_NAME_CHARS].encode(errors="backslashreplace").decode()


def _bad_name(name: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("bad_name", "{message}", {"message": message, "name": name})


def _describe_speaker(schema: JsonDict) -> None:
    fields = schema["properties"]
    assert isinstance(fields, dict) and isinstance(fields["voice"], dict)
    fields["speaker"] = {**fields["voice"], "title": "Speaker", "description": "Another name of `voice`."}


class VoiceId(StrictModel):
    id: str


class Reference(StrictModel):
    audio_path: str = Field(description="As `ref_audio`.")
    text: str | None = Field(None, description="As `ref_text`.")


References = Annotated[list[Reference], Field(max_length=1, fail_fast=True)]


class ExtraParams(StrictModel):
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    repetition_penalty: Penalty | None = None
    max_new_tokens: MaxNewTokens | None = None
    seed: Seed | None = None
    subtalker_temperature: Temperature | None = None
    subtalker_top_k: TopK | None = None
    subtalker_top_p: TopP | None = None


class VoiceOptions(StrictModel):
    """Everything about a request but its text and how the answer travels."""

    model_config = ConfigDict(json_schema_extra=_describe_speaker)

    model: str | None = Field(None, description="A served name, or one of OpenAI's; see /v1/models.")
    voice: str | VoiceId | None = Field(
        None, description="A preset, an uploaded voice, or one of OpenAI's names; see /v1/audio/voices."
    )
    instructions: str | None = Field(None, max_length=4096, description="How to speak; VoiceDesign: who speaks.")
    language: str | None = Field(None, max_length=64, description="`auto`, or a language of the checkpoint.")
    response_format: FormatName | None = Field(None, description="mp3 unless given; all formats are streamed.")
    speed: Finite | None = Field(None, ge=0.25, le=4.0, description="Also while streaming; the pitch is kept.")
    sample_rate: Literal[8000, 16000, 22050, 24000, 44100, 48000] | None = None
    seed: Seed | None = Field(None, description="The same seed gives the same sound.")
    temperature: Temperature | None = Field(None, description="0: no randomness.")
    top_k: TopK | None = None
    top_p: TopP | None = None
    repetition_penalty: Penalty | None = None
    max_new_tokens: MaxNewTokens | None = Field(
        None, description="One more than the most frames of 80 ms, over the whole text."
    )
    non_streaming_mode: bool | None = Field(None, description="true: the whole text lies before the first frame.")
    trim_silence: bool | None = Field(None, description="Leave the silence before the first sound out.")
    task_type: Literal["CustomVoice", "VoiceDesign", "Base"] | None = None
    ref_audio: str | Clips | None = Field(None, description="A clip to clone, as data: URL or base64.")
    ref_text: str | None = Field(None, max_length=4096, description="The words said in the clip.")
    x_vector_only_mode: bool | None = Field(None, description="The clip's timbre alone.")
    speaker_embedding: Embedding | None = None
    references: References | None = None
    word_timestamps: bool | None = Field(None, description="true is refused: there is no aligner here.")
    extra_params: ExtraParams | None = None

    initial_codec_chunk_frames: Any = _Ignored
    ref_audio_2: Any = _Ignored
    ambient_sound: Any = _Ignored
    duration_seconds: Any = _Ignored
    user: Any = _Ignored

    @model_validator(mode="before")
    @classmethod
    def _speaker_is_voice(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "speaker" not in given:
            return given
        if "voice" in given:
            raise _bad_name("speaker", "speaker is another name of voice, and both were given; give one of them")
        return {("voice" if name == "speaker" else name): value for name, value in given.items()}

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
    items: list[Item] = Field(
        min_length=1, description="Requests; what one of them leaves out, the fields beside `items` give."
    )


class LiveConfig(VoiceOptions):
    """`session.config` of the WebSocket."""

    type: Literal["session.config"]
    split_granularity: Any = _Ignored
    stream_audio: Any = _Ignored


FIELDS = {model: sorted(known_fields(model)) for model in (SpeechBody, BatchItem, BatchBody, LiveConfig)}

_OTHER_KIND = ("string_type", "list_type", "model_type", "model_attributes_type")


def invalid_field(errors: list[Any], known: Sequence[str] = ()) -> ApiError:
    """The first of pydantic's errors, in our words. `known` are the fields of a model that names none itself."""
    told = _max_exact(errors)
    name = ".".join(_place(told["loc"]))
    if told["type"] == "bad_name":
        param = f"{name}.{told['ctx']['name']}" if name else told["ctx"]["name"]
        return ApiError(422, f"{name}: {told['msg']}" if name else told["msg"], param=param)
    if told["type"] == "extra_forbidden":
        name = shown_name(str(told["loc"][-1]))
        return ApiError(422, unknown_choice("field", name, known), param=name)
    if told["type"] == "missing":
        return ApiError(422, f"{name or 'the body'} is missing; it is needed", param=name or None)
    if not name:
        return ApiError(422, "the body must be one JSON object, sent with content-type: application/json")
    given = told.get("input")
    shown = f", got {repr(given)[:_MAX_NAME_CHARS]}" if isinstance(given, int | float | bool | None) else ""
    return ApiError(422, f"{name}: {told['msg'][0].lower()}{told['msg'][1:]}{shown}", param=name)


def _max_exact(errors: list[Any]) -> Any:
    """Of a field that may be several kinds of things, each kind complains: the one that was meant got the furthest."""
    same = [error for error in errors if _place(error["loc"])[:1] == _place(errors[0]["loc"])[:1]]
    return max(same, key=lambda error: (len(_place(error["loc"])), error["type"] not in _OTHER_KIND))


def _place(loc: tuple[str | int, ...]) -> list[str]:
    """Without what FastAPI and pydantic put in: the body, and which kind of a field was tried. No field of ours has
    such a name, and a client's names do not come here."""
    parts = [str(part) for part in (loc[1:] if loc[:1] == ("body",) else loc)]
    return [part for part in parts if part not in ("str", "VoiceId") and not part.startswith("list[")]


def body_error(error: RequestValidationError) -> ApiError:
    return invalid_field(list(error.errors()))
