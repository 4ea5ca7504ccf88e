"""Request bodies as pydantic models: fields of OpenAI's API, of vLLM-Omni's, and our own. speech_plan.py reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import PydanticCustomError

from oscine.audio.encoders import SampleRate
from oscine.config import FormatName
from oscine.errors import FieldError, nearest, unknown_choice
from oscine.server.api.spellings import TaskName, meant_values
from oscine.speech.foreign_names import language_name
from oscine.types import TextLevel

RANDOM_SEED = -1
MAX_EMBEDDING = 8192  # numbers
Finite = Annotated[float, Field(allow_inf_nan=False)]
# Coarse limits; types.py has the exact ones, and speech_plan.py checks them.
Temperature = Annotated[Finite, Field(ge=0)]
TopK = Annotated[int, Field(ge=0, lt=2**31)]
TopP = Annotated[Finite, Field(gt=0, le=1)]
Penalty = Annotated[Finite, Field(gt=0)]
MaxNewTokens = Annotated[int, Field(ge=2, lt=2**63)]
Seed = Annotated[int, Field(ge=RANDOM_SEED, lt=2**64)]
Name = Annotated[str, Field(max_length=256)]
# fail_fast: a list may have a million bad entries, and only the first is reported.
Clips = Annotated[list[str], Field(fail_fast=True)]
Embedding = Annotated[list[Finite], Field(max_length=MAX_EMBEDDING, fail_fast=True)]
# Validated one by one later, so that a bad item does not fail the others.
Item = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]

_MAX_NAME_CHARS = 80  # of a client's string in an error message
_MAX_UNKNOWN = 64  # fields that are ignored; more are refused
_MAX_COMPARED_CHARS = 40  # longer names are not compared with the known ones
_SIMILAR = 0.7  # of 1.0: how much a misspelled name has in common with the right one
# A field of the other APIs without a meaning here: accepted, and listed in a response header.
_Ignored = Field(None, description="Accepted and ignored.", deprecated=True)


# What other speech APIs call our fields.
_OTHER_NAMES = {"text": "input", "prompt": "input", "format": "response_format"}


class StrictModel(BaseModel):
    """Refuses unknown fields."""

    # Strict: "1" is not a number and 1 is not a string.
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, given: Any) -> Any:
        """Runs before the fields: a misspelled name is the reason why another one is missing. Reports only one name."""
        known = cls.model_fields
        unknown = next((name for name in given if name not in known), None) if isinstance(given, dict) else None
        if unknown is not None:
            name = shown_name(unknown)
            meant = _OTHER_NAMES.get(name)
            raise _bad_name(name, unknown_choice("field", name, known, meant if meant in known else None))
        return given


def shown_name(name: str) -> str:
    """A client's string for an error message: short, and without lone surrogates."""
    return name[:_MAX_NAME_CHARS].encode(errors="backslashreplace").decode()


def _bad_name(name: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("bad_name", "{message}", {"message": message, "name": name})


@dataclass(frozen=True, slots=True)
class UnknownField:
    name: str
    container: str  # the field that holds it, such as "extra_params"; "": none
    known: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"{self.container}.{self.name}" if self.container else self.name

    @property
    def meant(self) -> str | None:
        """The known field that it resembles."""
        if (other := _OTHER_NAMES.get(self.name)) in self.known:
            return other
        if len(self.name) > _MAX_COMPARED_CHARS:
            return None
        return next(iter(nearest(self.name, self.known, similarity=_SIMILAR)), None)


class LenientModel(BaseModel):
    """Ignores unknown fields, as most servers of these APIs do, and remembers their names for the response. Reads
    wrong values that can mean only one thing, and remembers their errors for a strict server."""

    model_config = ConfigDict(extra="ignore", strict=True)
    _unknown: tuple[str, ...] = PrivateAttr(())
    _respelled: tuple[Any, ...] = PrivateAttr(())  # pydantic's errors of values that were read in spite of them

    @model_validator(mode="wrap")
    @classmethod
    def _remember_unknown(cls, given: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        known = cls.model_fields
        unknown = [name for name in given if name not in known] if isinstance(given, dict) else []
        if len(unknown) > _MAX_UNKNOWN:
            name = shown_name(unknown[0])
            message = f"there are {len(unknown)} unknown fields, such as {name!r}; send only fields of this API"
            raise _bad_name(name, message)
        try:
            model = validate(given)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if not (meant := meant_values(errors)):
                raise
        else:
            errors, meant = [], {}
        if meant:
            model = validate({**given, **meant})
            model._respelled = tuple(error for error in errors if error["loc"][0] in meant)
        if unknown:
            model._unknown = tuple(map(shown_name, unknown))
        return model

    def unknown_fields(self, container: str = "") -> Iterator[UnknownField]:
        """Unknown fields of this object and those in it."""
        for name in self._unknown:
            yield UnknownField(name, container, tuple(type(self).model_fields))
        for name, value in self.__dict__.items():
            if value is None:  # as most are
                continue
            prefix = f"{container}.{name}" if container else name
            if isinstance(value, LenientModel):
                yield from value.unknown_fields(prefix)
            elif isinstance(value, list) and value and isinstance(value[0], LenientModel):
                for index, inner in enumerate(value):
                    yield from inner.unknown_fields(f"{prefix}.{index}")

    def check_strict(self) -> None:
        """Raises 400 for the first unknown field, or the first value in another type or spelling."""
        for field in self.unknown_fields():
            message = unknown_choice("field", field.name, field.known, field.meant)
            raise FieldError(f"{field.container}: {message}" if field.container else message, param=field.path)
        for error in self._respelled:
            name = error["loc"][0]
            if isinstance(meant := getattr(self, name), str):
                raise FieldError(f"{name} must be spelled {meant!r}: this server is strict", param=name)
            raise invalid_field([error])


class VoiceId(LenientModel):
    id: Name


class Reference(LenientModel):
    audio_path: str | None = Field(None, description="As `ref_audio`.")
    ref_audio: str | None = Field(None, description="Alias of `audio_path`.")
    audio: str | None = Field(None, description="Alias of `audio_path`.")
    data: str | None = Field(None, description="The clip as base64.")
    media_type: str | None = Field(None, max_length=256, description="Of `data`. Not needed.")
    text: str | None = Field(None, max_length=4096, description="As `ref_text`.")

    @model_validator(mode="after")
    def _one_clip(self) -> Self:
        if len(self._clips) != 1:
            raise _bad_name("audio_path", f"a reference has one clip, as audio_path, not {len(self._clips)}")
        return self

    @property
    def _clips(self) -> list[str]:
        return [clip for clip in (self.audio_path, self.ref_audio, self.audio, self.data) if clip is not None]

    @property
    def clip(self) -> str:
        return self._clips[0]


References = Annotated[list[Reference], Field(max_length=1, fail_fast=True)]


class ExtraParams(LenientModel):
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    repetition_penalty: Penalty | None = None
    max_new_tokens: MaxNewTokens | None = None
    seed: Seed | None = None
    subtalker_temperature: Temperature | None = None
    subtalker_top_k: TopK | None = None
    subtalker_top_p: TopP | None = None
    do_sample: bool | None = None
    subtalker_dosample: bool | None = None


ALIASES = {
    "speaker": "voice",
    "instruct": "instructions",
    "lang_code": "language",
    "suppress_bootstrap_silence": "trim_silence",
    "skip_fixed_bootstrap_audio": "trim_silence",
}


class VoiceOptions(LenientModel):
    """All fields of a request but its text and the kind of response."""

    model: Name | None = Field(None, description="A served name, or one of OpenAI's; see /v1/models.")
    voice: Name | VoiceId | None = Field(
        None, description="A preset, an uploaded voice, or one of OpenAI's names; see /v1/audio/voices."
    )
    speaker: Name | VoiceId | None = Field(None, description="Alias of `voice`.")
    instructions: str | None = Field(
        None, max_length=4096, description="How to speak; with VoiceDesign, a description of the voice."
    )
    instruct: str | None = Field(None, max_length=4096, description="Alias of `instructions`.")
    language: str | None = Field(
        None, max_length=64, description="`auto`, or a language of the checkpoint: its name or its code (en, zh-CN)."
    )
    lang_code: str | None = Field(None, max_length=64, description="Alias of `language`.")
    response_format: FormatName | None = Field(
        None, description="Default: the server's, mp3 if it is not set. All formats can be streamed."
    )
    speed: Finite | None = Field(None, ge=0.25, le=4.0, description="Keeps the pitch; also works while streaming.")
    sample_rate: SampleRate | None = None
    seed: Seed | None = Field(None, description="The same seed gives the same audio. -1: random.")
    temperature: Temperature | None = Field(None, description="0: no randomness.")
    do_sample: bool | None = Field(None, description="false: no randomness.")
    top_k: TopK | None = None
    top_p: TopP | None = None
    repetition_penalty: Penalty | None = None
    subtalker_dosample: bool | None = Field(None, description="As `do_sample`, for the codes beyond the first.")
    subtalker_temperature: Temperature | None = None
    subtalker_top_k: TopK | None = None
    subtalker_top_p: TopP | None = None
    max_new_tokens: MaxNewTokens | None = Field(
        None, description="The maximum number of frames (80 ms each) of the whole text, plus one."
    )
    non_streaming_mode: bool | None = Field(
        None, description="true: the prompt holds the whole text before the first frame."
    )
    trim_silence: bool | None = Field(None, description="Remove the silence at the start.")
    trim_echo: bool | None = Field(
        None, description="Cloning with a transcript: remove an echo of the clip at the start. Delays streams."
    )
    suppress_bootstrap_silence: bool | None = Field(None, description="Alias of `trim_silence`.")
    skip_fixed_bootstrap_audio: bool | None = Field(None, description="Alias of `trim_silence`.")
    text_level: TextLevel | None = Field(
        None,
        description="`raw`: the model reads the text as it is. `clean`: without markup, emoji and typographic "
        "characters. `spoken`: also numbers, abbreviations, addresses and symbols in words. Default: what the "
        "checkpoint needs.",
    )
    normalize: bool | None = Field(
        None, description="true: `text_level` is `spoken`; false: at most `clean`. `text_level` counts before it."
    )
    markup: bool | None = Field(None, description='false: `<break time="500ms"/>` is spoken, not a pause.')
    paragraph_pause_s: Annotated[Finite, Field(ge=0, le=10)] | None = Field(
        None, description="Silence between paragraphs, in seconds."
    )
    pronunciations: dict[str, str] | None = Field(
        None, description='What is spoken instead of whole words: `{"Oscine": "OSS-een"}`.'
    )
    task_type: TaskName | None = None
    ref_audio: str | Clips | None = Field(None, description="A clip to clone, as data: URL or base64.")
    ref_text: str | None = Field(None, max_length=4096, description="The transcript of the clip.")
    x_vector_only_mode: bool | None = Field(None, description="Clone only the timbre of the clip.")
    speaker_embedding: Embedding | None = None
    references: References | None = None
    word_timestamps: bool | None = Field(None, description="Report when each word is spoken; needs an aligner.")
    extra_params: ExtraParams | None = None

    initial_codec_chunk_frames: Any = _Ignored
    ref_audio_2: Any = _Ignored
    ambient_sound: Any = _Ignored
    duration_seconds: Any = _Ignored
    user: Any = _Ignored
    ignore_eos: Any = _Ignored
    stream_chunk_schedule: Any = _Ignored
    stream_chunk_frames: Any = _Ignored
    stream_first_chunk_frames: Any = _Ignored
    stream_steady_chunk_frames: Any = _Ignored
    stream_codec_output: Any = _Ignored
    token_count: Any = _Ignored
    duration_tokens: Any = _Ignored
    stage_params: Any = _Ignored

    @model_validator(mode="after")
    def _use_aliases(self) -> Self:
        for alias, name in ALIASES.items():
            value, other = getattr(self, alias), getattr(self, name)
            if value is None:
                continue
            if other is not None and (alias == "speaker" or value != other):
                raise _bad_name(alias, f"{alias} is an alias of {name}; give only one of them")
            if alias != "speaker":
                setattr(self, name, value)
                setattr(self, alias, None)
                self.model_fields_set.discard(alias)
        return self

    def check_strict(self) -> None:
        super().check_strict()
        for error in self.extra_params._respelled if self.extra_params else ():
            raise invalid_field([{**error, "loc": ("extra_params", *error["loc"])}])

    @property
    def language_name(self) -> str:
        return language_name(self.language or "auto")

    @property
    def ignored_fields(self) -> list[str]:
        """Those that were given and ask for something."""
        fields = type(self).model_fields
        ignored = (name for name in self.model_fields_set if fields[name].deprecated)
        return sorted(name for name in ignored if self.__dict__[name] not in (None, False))


class BatchItem(VoiceOptions):
    input: str = Field(description="The text to speak, of any length.")


class SpeechBody(BatchItem):
    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "Hello there.", "response_format": "wav"}]})

    stream: bool | None = Field(
        None,
        description="true: audio as it is generated, or events if `Accept` asks for them. false: the whole file with "
        "its length. Only without stream_format. Default: false for WAV, true for the other formats.",
    )
    stream_format: Literal["audio", "sse", "json"] | None = Field(
        None, description="audio: the bytes. sse: events. json: the whole file and all about it, in one JSON object."
    )


class BatchBody(VoiceOptions):
    model_config = ConfigDict(json_schema_extra={"examples": [{"items": [{"input": "Hello."}, {"input": "Goodbye."}]}]})

    items: list[Item] = Field(min_length=1, description="Requests; the fields beside `items` are their defaults.")


Split = Literal["sentence", "clause"]  # what is a file of its own in a live session


_WRONG_ALTERNATIVE = ("string_type", "list_type", "model_type", "model_attributes_type")


def invalid_field(errors: list[Any]) -> FieldError:
    """The first of pydantic's errors in our words."""
    error = _most_specific(errors)
    name = ".".join(_path(error["loc"]))
    if error["type"] == "bad_name":
        param = f"{name}.{error['ctx']['name']}" if name else error["ctx"]["name"]
        return FieldError(f"{name}: {error['msg']}" if name else error["msg"], param=param)
    if error["type"] == "missing":
        return FieldError(f"{name or 'the body'} is missing; it is required{_misspelled(error)}", param=name or None)
    if not name:
        return FieldError("the body must be one JSON object, sent with content-type: application/json")
    given = error.get("input")
    shown = f", got {repr(given)[:_MAX_NAME_CHARS]}" if isinstance(given, int | float | bool | None) else ""
    return FieldError(f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}{shown}", param=name)


def _misspelled(error: Any) -> str:
    """Names the field that was probably meant to be the missing one."""
    missing, given = str(error["loc"][-1]), error.get("input")
    names = [shown_name(name) for name in list(given)[:_MAX_UNKNOWN]] if isinstance(given, dict) else []
    others = [name for name in names if _OTHER_NAMES.get(name) == missing]
    found = others or nearest(missing, [name for name in names if len(name) <= _MAX_COMPARED_CHARS])
    return f"; did you mean it by {found[0]!r}?" if found else ""


def _most_specific(errors: list[Any]) -> Any:
    """A field with several allowed types has an error per type; the type that the client meant matched furthest."""
    same_field = [error for error in errors if _path(error["loc"])[:1] == _path(errors[0]["loc"])[:1]]
    return max(same_field, key=lambda error: (len(_path(error["loc"])), error["type"] not in _WRONG_ALTERNATIVE))


def _path(loc: tuple[str | int, ...]) -> list[str]:
    """Drops the components that FastAPI and pydantic add: the body, and the type that was tried."""
    names = [str(name) for name in (loc[1:] if loc[:1] == ("body",) else loc)]
    tried = ("str", "constrained-str", "VoiceId")
    return [name for name in names if name not in tried and not name.startswith(("list[", "function-wrap["))]
