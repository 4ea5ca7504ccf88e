"""The request for speech: the one declaration of its fields, and the sampling that they ask for. No numpy, no torch."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from oscine.audio.formats import MAX_SPEED, MAX_VOLUME, MIN_SPEED, SampleRate
from oscine.errors import RequestError, unknown_choice
from oscine.fields import RequestField, Spec, declared_fields
from oscine.text.options import TextOptions

if TYPE_CHECKING:
    from oscine.voice import Voice

TextMode = Literal["whole", "streaming"]
RANDOM_SEED = -1
MAX_CONTINUES_S = 3600.0  # upper limit of SpeechRequest.continues_s
MAX_TURNS = 256  # of a dialogue
MAX_TURN_PAUSE_S = 10.0
MAX_MIXED = 8  # voices
_MIX = re.compile(r"[^+()]+(\(\d{1,9}(\.\d{0,9})?\))?(\+[^+()]+(\(\d{1,9}(\.\d{0,9})?\))?)+", re.ASCII)
TURN_ALIASES = {"input": "text", "speaker": "voice", "instruct": "instructions"}

# Beyond these fp32 overflows: probabilities would be NaN, and every draw would silently be code 0.
_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6
_FACTOR = f"a number from {_MIN_FACTOR:g} to {_MAX_FACTOR:g}"


def _temperature(about: str) -> Spec:
    rule = f"0 (no randomness) or {_FACTOR}"
    return Spec(about=about, rule=rule, least=0, most=_MAX_FACTOR, accepts=lambda value: not 0 < value < _MIN_FACTOR)


def _top_k(about: str) -> Spec:
    return Spec(about=about, rule="a whole number, 0 (off) or more", least=0, most=2**31 - 1)


def _top_p(about: str) -> Spec:
    return Spec(about=about, rule="a number above 0 and at most 1 (off)", above=0, most=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceSource:
    """A voice that a server makes for one request: from a clip or, with an `embedding`, from a speaker vector."""

    clip: str | None = None  # a URL or base64
    transcript: str | None = None  # of the clip; None: only its timbre is cloned
    embedding: tuple[float, ...] | None = None

    @property
    def param(self) -> str:
        """The field that asks for it."""
        return "ref_audio" if self.embedding is None else "speaker_embedding"


@dataclass(frozen=True, slots=True)
class VoiceMix:
    """Voices to blend into one: names, or in Python voices, with their weights."""

    parts: tuple[tuple[str | Voice, float], ...]

    @staticmethod
    def of(weights: object) -> VoiceMix:
        """Checks a table of weights by name. Raises RequestError."""
        if not isinstance(weights, Mapping) or not 1 <= len(weights) <= MAX_MIXED:
            found = f"{len(weights)} voices" if isinstance(weights, Mapping) else type(weights).__name__
            raise RequestError(f"voice.mix must have 1 to {MAX_MIXED} voices with their weights, got {found}", "voice")
        for voice, weight in weights.items():
            if not _is_number(weight) or not _MIN_FACTOR <= weight <= _MAX_FACTOR:
                shown = f"{voice[:80]!r}" if isinstance(voice, str) else repr(voice)
                raise RequestError(f"the weight of {shown} in voice.mix must be {_FACTOR}, got {weight!r}", "voice")
        return VoiceMix(tuple(weights.items()))

    @staticmethod
    def named(name: str) -> VoiceMix | None:
        """The mix that a name stands for, as Kokoro's servers write it: af_bella(2)+af_sky; None for another name.
        Raises RequestError."""
        if "+" not in name or not _MIX.fullmatch(name):
            return None
        weights: dict[str, float] = {}
        for part in name.split("+"):
            voice, _, weight = part.rstrip(")").partition("(")
            weights[voice] = weights.get(voice, 0.0) + (float(weight) if weight else 1.0)
        return VoiceMix.of(weights)

    def __str__(self) -> str:
        return "+".join(f"{name if isinstance(name, str) else 'voice'}({weight:g})" for name, weight in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of a dialogue. None means: what the request says."""

    text: str = field(kw_only=False)
    voice: Annotated[
        str | Voice | VoiceMix | None,
        Spec(about="Who speaks: the name of a preset or an uploaded voice, or a mix; in Python, also a `Voice`."),
    ] = None
    instructions: Annotated[
        str | None, Spec(about='How to speak; "": without the instructions of the request.', max_chars=4096)
    ] = None
    language: Annotated[str | None, Spec(about="Of this turn, as `language` of the request.", max_chars=64)] = None
    pause_s: Annotated[
        float,
        Spec(
            about="Silence before the turn, in seconds.",
            rule=f"a number of seconds from 0 to {MAX_TURN_PAUSE_S:g}",
            least=0,
            most=MAX_TURN_PAUSE_S,
        ),
    ] = 0.0

    @staticmethod
    def fields() -> Mapping[str, RequestField]:
        """The fields beside the text, by name."""
        return declared_fields(Turn)

    @classmethod
    def of(cls, given: object) -> Self:
        """Makes a turn of its fields, as JSON has them. Raises RequestError."""
        if not isinstance(given, Mapping):
            raise RequestError(f"a turn must be an object with a text, got {type(given).__name__}")
        fields: dict[Any, Any] = {TURN_ALIASES.get(name, name): value for name, value in given.items()}
        known = ("text", *cls.fields())
        for name in fields:
            if name not in known:
                raise RequestError(unknown_choice("field", str(name), known), name)
        if len(fields) < len(given):
            raise RequestError(f"a field has two names here, of {', '.join(map(str, given))}; give one of them")
        if fields.get("text") is None:
            raise RequestError("text is missing; it is required", "text")
        voice = fields.get("voice")
        if isinstance(voice, Mapping) and list(voice) == ["id"]:  # as OpenAI's clients have it
            voice = fields["voice"] = voice["id"]
        elif isinstance(voice, Mapping) and list(voice) == ["mix"]:
            voice = fields["voice"] = VoiceMix.of(voice["mix"])
        if not isinstance(voice, str | VoiceMix | None):
            raise RequestError(f"voice must be the name of a voice, got {voice!r}", "voice")
        return cls(**{name: value for name, value in fields.items() if value is not None})

    def check(self, container: str) -> None:
        """Checks type and bounds of every field but the voice. Raises RequestError."""
        if not isinstance(self.text, str):
            raise RequestError(
                f"{container}.text must be a string, got {type(self.text).__name__}", f"{container}.text"
            )
        for name, declared in self.fields().items():
            if (value := getattr(self, name)) is not declared.default:
                declared.check(value, container)


def turns_of(given: object) -> tuple[Turn, ...]:
    """The turns of a dialogue, as JSON has them. Raises RequestError."""
    if not isinstance(given, list) or not given:
        found = "an empty list" if isinstance(given, list) else type(given).__name__
        raise RequestError(f"a dialogue must be a list of turns, got {found}", "input")
    turns = []
    for index, one in enumerate(given):
        with naming_turn(index):
            turns.append(Turn.of(one))
    return tuple(turns)


@contextlib.contextmanager
def naming_turn(index: int | None) -> Iterator[None]:
    """Errors of the request, and the fields that they are about, get the name of this turn; with None they keep
    theirs."""
    try:
        yield
    except RequestError as error:
        if index is None:
            raise
        turn = f"input[{index}]"
        param = f"{turn}.{error.param}" if error.param else turn
        raise type(error)(f"{param}: {error}", param, error.code) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest(TextOptions):
    """One request for speech. None means: the default of the checkpoint or the mode.

    Every entrance offers the fields that have a Spec: HTTP, WebSocket, Triton, the command line, Python.
    """

    text: str = field(default="", kw_only=False)
    turns: Sequence[Turn] = ()  # a dialogue, instead of a text; the other fields are defaults of its turns
    voice: Annotated[
        str | Voice | VoiceSource | VoiceMix | None,
        Spec(about="The name of a preset or an uploaded voice, or a mix of them; in Python, also a `Voice`."),
    ] = None
    language: Annotated[
        str, Spec(about="`auto`, or a language of the checkpoint: its name or its code (en, zh-CN).", max_chars=64)
    ] = "auto"
    instructions: Annotated[
        str | None, Spec(about="How to speak; with VoiceDesign, a description of the voice.", max_chars=4096)
    ] = None
    text_mode: Annotated[
        TextMode | None,
        Spec(
            about="`whole`: the prompt holds the whole text before the first frame. `streaming`: words follow frame by "
            "frame. Default: the official one."
        ),
    ] = None
    speed: Annotated[
        float,
        Spec(
            about=f"{MIN_SPEED:g} to {MAX_SPEED:g}. Keeps the pitch; also works while streaming.",
            rule=f"a number from {MIN_SPEED:g} to {MAX_SPEED:g}",
            least=MIN_SPEED,
            most=MAX_SPEED,
        ),
    ] = 1.0
    volume: Annotated[
        float,
        Spec(
            about=f"0 to {MAX_VOLUME:g}: a factor of the samples; 2 is 6 dB louder. What becomes too loud is clipped.",
            rule=f"a number from 0 to {MAX_VOLUME:g}",
            least=0,
            most=MAX_VOLUME,
        ),
    ] = 1.0
    sample_rate: Annotated[SampleRate | None, Spec(about="Of the result in Hz. Default: the checkpoint's.")] = None
    seed: Annotated[
        int | None,
        Spec(
            about="The same seed gives the same speech. -1: random, which is the default.",
            rule="a whole number from 0 to 2**64 - 1, or -1 (random)",
            least=RANDOM_SEED,
            most=2**64 - 1,
        ),
    ] = None
    greedy: Annotated[bool | None, Spec(about="true: no randomness in any codebook.")] = None
    temperature: Annotated[float | None, _temperature("Of the first codebook; 0: no randomness in any codebook.")] = (
        None
    )
    top_k: Annotated[int | None, _top_k("Of the first codebook; 0: off.")] = None
    top_p: Annotated[float | None, _top_p("Of the first codebook; 1: off.")] = None
    repetition_penalty: Annotated[
        float | None,
        Spec(about="Of the first codebook; 1: off.", rule=f"{_FACTOR}; 1 is off", least=_MIN_FACTOR, most=_MAX_FACTOR),
    ] = None
    subtalker_temperature: Annotated[
        float | None, _temperature("Of the other 15 codebooks; 0: no randomness in them.")
    ] = None
    subtalker_top_k: Annotated[int | None, _top_k("Of the other 15 codebooks; 0: off.")] = None
    subtalker_top_p: Annotated[float | None, _top_p("Of the other 15 codebooks; 1: off.")] = None
    max_new_tokens: Annotated[
        int | None,
        Spec(
            about="The maximum number of frames (80 ms each) of the whole text, plus one.",
            rule="a whole number of at least 2 (it gives one frame less)",
            least=2,
            most=2**63 - 1,
        ),
    ] = None
    trim_silence: Annotated[
        bool | None, Spec(about="Remove the silence at the start. Default: the engine's setting; in Python, false.")
    ] = None
    trim_echo: Annotated[
        bool | None,
        Spec(about="Cloning with a transcript: remove an echo of the clip at the start. Delays streams."),
    ] = None

    # Set by who runs the engine, not by who asks.
    return_codes: bool = False  # the last chunk carries the codes of all frames
    stream_codes: bool = False  # instead: every chunk carries the codes of the frames since the chunk before
    # Set for a continuation: the next segment of a speech whose first segment was admitted. Seconds of audio that its
    # listener has not played yet. A continuation is never refused for load and goes first in the queue.
    continues_s: float | None = None
    # A continuation whose text paused, so that its slot was given back. It goes first too, but waits until the engine
    # has room for one more stream.
    resumes: bool = False

    @staticmethod
    def fields() -> Mapping[str, RequestField]:
        """The fields that every entrance offers, by name."""
        return declared_fields(SpeechRequest)

    @property
    def written(self) -> str:
        """The text, or those of all turns."""
        return "\n".join(turn.text for turn in self.turns) if self.turns else self.text

    @property
    def chars(self) -> int:
        """How many characters the text has, or those of all turns."""
        return sum(len(turn.text) for turn in self.turns) if self.turns else len(self.text)

    def of_turn(self, turn: Turn) -> SpeechRequest:
        """The request that speaks this turn alone."""
        own = {name: getattr(turn, name) for name in ("voice", "instructions", "language")}
        return replace(
            self, text=turn.text, turns=(), **{name: value for name, value in own.items() if value is not None}
        )

    def alone(self) -> list[SpeechRequest]:
        """The requests for its turns, or itself."""
        return [self.of_turn(turn) for turn in self.turns] if self.turns else [self]

    def check(self) -> None:
        """Checks type and bounds of every field but the text and the voice, also of the turns. Raises RequestError."""
        if self.turns and self.text:
            raise RequestError("a request has a text or turns, not both; make the text a turn", "turns")
        if len(self.turns) > MAX_TURNS:
            raise RequestError(f"the dialogue has {len(self.turns)} turns, the limit is {MAX_TURNS}; split it", "input")
        for index, turn in enumerate(self.turns):
            turn.check(f"input[{index}]")
        for name, declared in declared_fields(SpeechRequest).items():
            value = getattr(self, name)
            if value is not declared.default:
                declared.check(value)

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """The checkpoint's defaults, overridden by this request's values."""
        greedy = True if self.greedy or self.temperature == 0 else self.greedy
        first = _over(
            defaults.first,
            greedy=greedy,
            temperature=self.temperature or None,
            top_k=self.top_k,
            top_p=self.top_p,
        )
        rest = _over(
            defaults.rest,
            greedy=True if self.subtalker_temperature == 0 else greedy,
            temperature=self.subtalker_temperature or None,
            top_k=self.subtalker_top_k,
            top_p=self.subtalker_top_p,
        )
        seed = secrets.randbits(63) if self.seed in (None, RANDOM_SEED) else self.seed
        return _over(
            defaults,
            first=first,
            rest=rest,
            seed=seed,
            repetition_penalty=self.repetition_penalty,
            max_new_tokens=self.max_new_tokens,
        )

    def for_engine(self, **changed: Any) -> SpeechRequest:
        """Leaves out what is done before and after the engine. `changed` saves a second copy (20 us)."""
        return replace(self, **_NOT_FOR_ENGINES, **changed)

    def check_for_engine(self) -> None:
        """Checks everything but the text, the voice and the language, and that nothing is left to be done outside of an
        engine. Raises RequestError."""
        for name, default in _NOT_FOR_ENGINES.items():
            if getattr(self, name) != default:
                where = "oscine.audio.encoders" if name in _OF_ENCODERS else "oscine.text.preparation"
                raise RequestError(f"an engine does not apply {name}; use Oscine.speak, or {where} beside it", name)
        self.check()
        left_s = self.continues_s
        if left_s is not None and not (_is_number(left_s) and 0 <= left_s <= MAX_CONTINUES_S):
            raise RequestError(
                f"continues_s must be from 0 to {MAX_CONTINUES_S:g} seconds (unplayed audio of the listener); "
                f"leave it out for a new listener, got {left_s!r}",
                "continues_s",
            )


_OF_ENCODERS: Mapping[str, Any] = {"speed": 1.0, "volume": 1.0, "sample_rate": None}
# Fields that an engine refuses, with the values that ask for nothing.
_NOT_FOR_ENGINES: Mapping[str, Any] = {
    "turns": (),
    **{name: declared.default for name, declared in declared_fields(TextOptions).items()},
    **_OF_ENCODERS,
}


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How a code is sampled from its logits. `top_k` 0 and `top_p` 1.0 mean off."""

    greedy: bool = False
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0

    @property
    def tail(self) -> float:
        """The probability that top-p cuts off; 0: off. Subtracted in double precision, as the official package does:
        in fp32 a tail of exactly this size would fall on the other side."""
        return 1.0 - self.top_p


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of code 0 (`first`) and of codes 1..15 (`rest`); defaults of the published generation_config.json."""

    first: DrawParams = field(default_factory=DrawParams)
    rest: DrawParams = field(default_factory=DrawParams)
    repetition_penalty: float = 1.05
    # Official meaning: sampled code-0 tokens. The last one never becomes a frame, so N gives at most N-1 frames.
    max_new_tokens: int = 8192
    seed: int = 0

    def check(self) -> None:
        """Raises RequestError. Requests are checked before: this is for the defaults of a checkpoint."""
        known = SpeechRequest.fields()
        for prefix, draw in (("", self.first), ("subtalker_", self.rest)):
            for one in fields(draw):
                name = one.name if one.name == "greedy" else f"{prefix}{one.name}"
                known[name].check(getattr(draw, one.name))
            if draw.temperature == 0:
                name = f"{prefix}temperature"
                raise RequestError(f"{name} must be above 0; for no randomness ask for greedy", name)
        known["repetition_penalty"].check(self.repetition_penalty)
        known["max_new_tokens"].check(self.max_new_tokens)


_Params = TypeVar("_Params", DrawParams, SamplingParams)


def _over(params: _Params, **values: object) -> _Params:
    given = {name: value for name, value in values.items() if value is not None}
    return replace(params, **given) if given else params  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
