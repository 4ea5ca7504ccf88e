"""Request bodies as pydantic models: fields of OpenAI's API, of vLLM-Omni's, and our own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import PydanticCustomError

from oscine.audio.formats import MAX_PACKET_MS, MAX_VOLUME, MIN_PACKET_MS, FormatName
from oscine.errors import FieldError, RequestError, nearest, shown_name, unknown_choice
from oscine.fields import RequestField
from oscine.request import MAX_TURNS, TURN_ALIASES, SpeechRequest, Turn, VoiceMix, VoiceSource, naming_turn
from oscine.server.http.errors import MAX_COMPARED_CHARS, MAX_UNKNOWN_FIELDS, OTHER_NAMES, invalid_field
from oscine.server.spellings import TaskName, meant_values
from oscine.speech.capabilities import AUTO, KIND_NAMES
from oscine.speech.phrase_cache import CacheUse
from oscine.speech.routing import AskedModel
from oscine.speech.voice_names import language_name
from oscine.types import ModelCard

MAX_EMBEDDING = 8192  # numbers
Finite = Annotated[float, Field(allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=256)]
# fail_fast: a list may have a million bad entries, and only the first is reported.
Clips = Annotated[list[str], Field(fail_fast=True)]
Embedding = Annotated[list[Finite], Field(max_length=MAX_EMBEDDING, fail_fast=True)]
# Validated one by one later, so that a bad item does not fail the others.
Item = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": True})]

_SIMILAR = 0.7  # of 1.0: how much a misspelled name has in common with the right one
# A field of the other APIs without a meaning here: accepted, and listed in a response header.
_Ignored = Field(None, description="Accepted and ignored.", deprecated=True)


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
            meant = OTHER_NAMES.get(name)
            raise _bad_name(name, unknown_choice("field", name, known, meant if meant in known else None))
        return given


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
        if (other := OTHER_NAMES.get(self.name)) in self.known:
            return other
        if len(self.name) > MAX_COMPARED_CHARS:
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
        if len(unknown) > MAX_UNKNOWN_FIELDS:
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
                    yield from inner.unknown_fields(f"{prefix}[{index}]")

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


Weights = Annotated[Any, WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}})]


class VoiceObject(LenientModel):
    """A voice by its name, or a mix of voices."""

    id: Name | None = None
    mix: Weights = Field(None, description='Voices with their weights, such as {"ryan": 0.6, "me": 0.4}.')

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.id is None) == (self.mix is None):
            raise _bad_name("id", "a voice that is an object has either an id or a mix")
        return self


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


def _wire_field(field: RequestField) -> Any:
    """A field of SpeechRequest as one of a pydantic model: null and leaving it out mean its default."""
    spec, kind = field.spec, dict[str, str] if field.kind == Mapping[str, str] else field.kind
    bounds: dict[str, Any] = {"ge": spec.least, "le": spec.most, "gt": spec.above, "max_length": spec.max_chars}
    if kind is float:
        bounds["allow_inf_nan"] = False
    rules: list[Any] = [Field(**{name: bound for name, bound in bounds.items() if bound is not None})]
    if spec.accepts:
        rules.append(AfterValidator(partial(_accepted, field)))
    return Annotated[kind, *rules] | None, Field(None, description=spec.about)


def _accepted(field: RequestField, value: Any) -> Any:
    field.check(value)
    return value


def _with_fields(name: str, fields: Iterable[RequestField]) -> Any:
    return create_model(name, __base__=LenientModel, **{field.name: _wire_field(field) for field in fields})


_KINDS = {name: kind for kind, name in KIND_NAMES.items()}
_FIELDS = SpeechRequest.fields()
_SAMPLING = (
    *("temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens", "seed"),
    *("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
)
_OTHERS = _FIELDS.keys() - {"voice", *_SAMPLING}
if TYPE_CHECKING:  # the fields are made from those of SpeechRequest

    class _SamplingFields(LenientModel):
        def __getattr__(self, name: str) -> Any: ...

    class _RequestFields(LenientModel):
        def __getattr__(self, name: str) -> Any: ...

    class _TurnFields(LenientModel):
        def __getattr__(self, name: str) -> Any: ...

else:
    _TurnFields = _with_fields("_TurnFields", [field for field in Turn.fields().values() if field.name != "voice"])
    _SamplingFields = _with_fields("_SamplingFields", [_FIELDS[name] for name in _SAMPLING])
    _RequestFields = _with_fields("_RequestFields", [field for field in _FIELDS.values() if field.name != "voice"])


class TurnBody(_TurnFields):
    """A turn of a dialogue. What it leaves out is as the request says."""

    _has_text: ClassVar[bool] = True  # False: it may come later
    text: str | None = Field(None, description="What is said.")
    input: str | None = Field(None, description="Alias of `text`.")
    voice: Name | VoiceObject | None = Field(
        None, description="A preset, an uploaded voice, one of OpenAI's names, or a mix."
    )
    speaker: Name | VoiceObject | None = Field(None, description="Alias of `voice`.")
    instruct: str | None = Field(None, max_length=4096, description="Alias of `instructions`.")

    @model_validator(mode="after")
    def _use_aliases(self) -> Self:
        for alias, name in TURN_ALIASES.items():
            if (value := getattr(self, alias)) is None:
                continue
            if getattr(self, name) is not None:
                raise _bad_name(alias, f"{alias} is an alias of {name}; give only one of them")
            setattr(self, name, value)
            setattr(self, alias, None)
        if self.text is None and self._has_text:
            raise _bad_name("text", "a turn must have a text")
        return self

    def turn(self, index: int | None = None) -> Turn:
        """`index`: its place in a dialogue. Raises RequestError."""
        given: dict[str, Any] = {name: value for name in Turn.fields() if (value := getattr(self, name)) is not None}
        if self.language is not None:
            given["language"] = language_name(self.language or AUTO)
        with naming_turn(index):
            return Turn(self.text or "", **{**given, "voice": _voice_asked(self.voice)})


def _voice_asked(given: str | VoiceObject | None) -> str | VoiceMix | None:
    """Raises RequestError."""
    if not isinstance(given, VoiceObject):
        return given
    return given.id if given.mix is None else VoiceMix.of(given.mix)


Turns = Annotated[list[TurnBody], Field(min_length=1, max_length=MAX_TURNS, fail_fast=True)]
Text = str | Turns  # of a request: a text, or a dialogue


class ExtraParams(_SamplingFields):
    """Sampling fields, where vLLM-Omni has them."""

    do_sample: bool | None = None
    subtalker_dosample: bool | None = None


ALIASES = {
    "speaker": "voice",
    "instruct": "instructions",
    "lang_code": "language",
    "volume_multiplier": "volume",
    "suppress_bootstrap_silence": "trim_silence",
    "skip_fixed_bootstrap_audio": "trim_silence",
}


class VoiceOptions(_RequestFields):
    """All fields but the text and the kind of response: those of SpeechRequest, and what other APIs have."""

    model: Name | None = Field(None, description="A served name, or one of OpenAI's; see /v1/models.")
    voice: Name | VoiceObject | None = Field(
        None, description="A preset, an uploaded voice, one of OpenAI's names, or a mix; see /v1/audio/voices."
    )
    speaker: Name | VoiceObject | None = Field(None, description="Alias of `voice`.")
    instruct: str | None = Field(None, max_length=4096, description="Alias of `instructions`.")
    lang_code: str | None = Field(None, max_length=64, description="Alias of `language`.")
    volume_multiplier: float | None = Field(None, ge=0, le=MAX_VOLUME, description="Alias of `volume`.")
    response_format: FormatName | None = Field(
        None, description="Default: the server's, mp3 if it is not set. All formats can be streamed."
    )
    packet_ms: int | None = Field(
        None,
        ge=MIN_PACKET_MS,
        le=MAX_PACKET_MS,
        description="Streamed audio comes in packets of this length, the last one shorter: a write, event or WebSocket "
        "frame each. For formats whose samples all have the same size: pcm, mulaw, alaw, g722.",
    )
    cache: CacheUse | None = Field(
        None,
        description="auto: a phrase that was spoken with this seed before comes from memory, a new one is remembered. "
        "only: it must be there. off: neither. Default: auto. Needs a seed, and a server with a phrase cache.",
    )
    do_sample: bool | None = Field(None, description="false: no randomness.")
    subtalker_dosample: bool | None = Field(None, description="As `do_sample`, for the codes beyond the first.")
    non_streaming_mode: bool | None = Field(
        None, description="true: `text_mode` is `whole`; false: `streaming`. `text_mode` counts before it."
    )
    suppress_bootstrap_silence: bool | None = Field(None, description="Alias of `trim_silence`.")
    skip_fixed_bootstrap_audio: bool | None = Field(None, description="Alias of `trim_silence`.")
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
    def asked_model(self) -> AskedModel:
        return AskedModel(self.model, _KINDS.get(self.task_type or ""))

    def request(self, text: Text = "") -> SpeechRequest:
        """Makes the request that any entrance makes. Raises RequestError for fields that contradict each other."""
        given = {name: value for name in _OTHERS if (value := getattr(self, name)) is not None}
        given.update(self._sampling())
        if self.language is not None:
            given["language"] = language_name(self.language or AUTO)
        if not self.instructions:
            given.pop("instructions", None)
        if self.text_mode is None and self.non_streaming_mode is not None:
            given["text_mode"] = "whole" if self.non_streaming_mode else "streaming"
        if isinstance(text, str):
            given["text"] = text
        else:
            given["turns"] = tuple(turn.turn(index) for index, turn in enumerate(text))
        return SpeechRequest(voice=self._voice(), **given)

    def _sampling(self) -> dict[str, Any]:
        """Returns the sampling fields, each of which may stand in `extra_params` too. If only one of the talker and the
        predictor must not draw, its `top_k` is 1."""
        extra = self.extra_params
        values = {name: getattr(extra, name) for name in _SAMPLING} if extra else {}
        values |= {name: value for name in _SAMPLING if (value := getattr(self, name)) is not None}
        values = {name: value for name, value in values.items() if value is not None}
        draws, draws_rest = (
            getattr(extra, name) if extra and getattr(self, name) is None else getattr(self, name)
            for name in ("do_sample", "subtalker_dosample")
        )
        greedy = self.greedy or draws is False or values.get("temperature") == 0
        greedy_rest = draws_rest is False or (greedy and not draws_rest) or values.get("subtalker_temperature") == 0
        if greedy and greedy_rest:
            return {**values, "greedy": True}
        for is_greedy, prefix in ((greedy, ""), (greedy_rest, "subtalker_")):
            if is_greedy:
                values.pop(f"{prefix}temperature", None)
                values[f"{prefix}top_k"] = 1
        return values

    def _voice(self) -> str | VoiceSource | VoiceMix | None:
        clip, transcript = self._reference()
        if self.speaker_embedding is not None:
            if clip is not None:
                message = "ref_audio and speaker_embedding are mutually exclusive; give one"
                raise RequestError(message, "speaker_embedding")
            return VoiceSource(embedding=tuple(self.speaker_embedding))
        if clip is not None:
            return VoiceSource(clip=clip, transcript=None if self.x_vector_only_mode else transcript)
        if transcript is not None:
            raise RequestError("ref_text is the transcript of a clip; give the clip too, as ref_audio", "ref_text")
        if self.x_vector_only_mode:
            raise RequestError("x_vector_only_mode needs a clip; give it as ref_audio", "x_vector_only_mode")
        return _voice_asked(self.speaker if self.voice is None else self.voice)

    def _reference(self) -> tuple[str | None, str | None]:
        """Returns the clip and its transcript."""
        clips = [self.ref_audio] if isinstance(self.ref_audio, str) else self.ref_audio or []
        if self.references:
            if clips:
                raise RequestError("give ref_audio or references, not both", "references")
            of_reference = self.references[0].text
            if of_reference is not None and self.ref_text not in (None, of_reference):
                message = "ref_text and the text of references differ; both are the transcript of one clip: give one"
                raise RequestError(message, "ref_text")
            return self.references[0].clip, self.ref_text if of_reference is None else of_reference
        if len(clips) > 1:
            raise RequestError(f"ref_audio has {len(clips)} clips, only one is supported; join them", "ref_audio")
        return (clips[0] if clips else None), self.ref_text

    @property
    def ignored_fields(self) -> list[str]:
        """Names of ignored fields that were given and ask for something."""
        fields = type(self).model_fields
        ignored = (name for name in self.model_fields_set if fields[name].deprecated)
        return sorted(name for name in ignored if self.__dict__[name] not in (None, False))


class BatchItem(VoiceOptions):
    input: Text = Field(description="The text to speak, of any length; or the turns of a dialogue.")

    @property
    def chars(self) -> int:
        """How many characters the whole text has."""
        return len(self.input) if isinstance(self.input, str) else sum(len(turn.text or "") for turn in self.input)

    def check_strict(self) -> None:
        super().check_strict()
        for index, turn in enumerate(self.input if isinstance(self.input, list) else ()):
            for error in turn._respelled:
                raise invalid_field([{**error, "loc": ("input", index, *error["loc"])}])


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


# Fields that have no effect, as the response names them: short, in printable ASCII, and not too many.
_MAX_LISTED = 20
_MAX_WARNINGS = 4  # a name is compared with all known ones for each
_NOT_LISTED = re.compile(r"[^\x21-\x2b\x2d-\x7e]")  # commas separate the names in a header


def ignored_fields(options: VoiceOptions, card: ModelCard, unknown: Sequence[UnknownField]) -> tuple[str, ...]:
    """Names the fields without an effect. `unknown` are those of the options."""
    # Clients of vLLM-Omni and OpenAI always send a voice, also where the instructions or a clip define it.
    is_defined = card.kind == "voice_design" or options.ref_audio or options.references or options.speaker_embedding
    given = {name for name in ("voice", "speaker") if is_defined and getattr(options, name) is not None}
    return listed_fields({*options.ignored_fields, *given, *(field.path for field in unknown)})


def listed_fields(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(_shown(name) for name in names))[:_MAX_LISTED]


def field_warnings(unknown: Sequence[UnknownField]) -> tuple[str, ...]:
    """Warns of misspelled fields."""
    return tuple(
        f"the field '{_shown(field.path)}' is unknown and was ignored; did you mean '{field.meant}'?"
        for field in unknown[:_MAX_WARNINGS]
        if field.meant
    )


def _shown(name: str) -> str:
    return _NOT_LISTED.sub("?", name)
