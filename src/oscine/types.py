"""Requests, results and the engine protocol. No torch here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import Codes, Samples
from oscine.errors import OscineError, RequestError
from oscine.voice import Voice

MAX_CONTINUES_S = 3600.0  # upper limit of SpeechRequest.continues_s

TextMode = Literal["whole", "streaming"]
TextLevel = Literal["raw", "clean", "spoken"]  # of a text: as it is, without markup, in words
# stop: end of speech. length: the frame limit. runaway: runaway detection ended it (the good audio is kept).
FinishReason = Literal["stop", "length", "runaway", "cancelled", "error"]
ReportProgress = Callable[[str, int, int], None]  # stage, steps done, steps in all
ClipData = bytes | tuple[npt.NDArray[np.generic], int]  # an audio file's content, or samples with their rate in Hz


# Beyond these fp32 overflows: probabilities would be NaN, and every draw would silently be code 0.
_MIN_FACTOR, _MAX_FACTOR = 1e-6, 1e6
_INTEGER = (int, np.integer)
_REAL = (*_INTEGER, float, np.floating)


def _check_factor(name: str, value: object, hint: str = "") -> None:
    if not isinstance(value, _REAL) or isinstance(value, bool) or not _MIN_FACTOR <= value <= _MAX_FACTOR:
        raise RequestError(
            f"{name} must be a number above 0 ({_MIN_FACTOR:g} to {_MAX_FACTOR:g}), got {value!r}{hint}", name
        )


def _check_integer(name: str, value: object, least: int, end: float, rule: str) -> None:
    if not isinstance(value, _INTEGER) or isinstance(value, bool) or not least <= value < end:
        raise RequestError(f"{name} must be {rule}, got {value!r}", name)


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

    def check(self, prefix: str = "") -> None:
        if not isinstance(self.greedy, bool):
            raise RequestError(f"greedy must be true or false, got {self.greedy!r}", "greedy")
        _check_factor(f"{prefix}temperature", self.temperature, "; for no randomness ask for greedy")
        _check_integer(f"{prefix}top_k", self.top_k, 0, 2**31, "a whole number, 0 (off) or more")
        if not isinstance(self.top_p, _REAL) or not 0 < self.top_p <= 1:
            raise RequestError(
                f"{prefix}top_p must be a number above 0 and at most 1 (off), got {self.top_p!r}", f"{prefix}top_p"
            )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of code 0 (`first`) and of codes 1..15 (`rest`); defaults of the published generation_config.json."""

    first: DrawParams = field(default_factory=DrawParams)
    rest: DrawParams = field(default_factory=DrawParams)
    repetition_penalty: float = 1.05
    # Official meaning: sampled code-0 tokens. The last one never becomes a frame, so N gives at most N-1 frames.
    max_new_tokens: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        self.first.check()
        self.rest.check("subtalker_")
        _check_factor("repetition_penalty", self.repetition_penalty, "; 1 is off")
        rule = "a whole number of at least 2 (it gives one frame less)"
        _check_integer("max_new_tokens", self.max_new_tokens, 2, float("inf"), rule)
        _check_integer("seed", self.seed, 0, 2**64, "a whole number between 0 and 2**64 - 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What becomes of a text before the model reads it; text/preparation.py does it."""

    text_level: TextLevel | None = None  # how far the text is rewritten; None: as `normalize` says
    normalize: bool | None = None  # True: "spoken"; False: the checkpoint's level, at most "clean"; None: its level
    markup: bool = True  # <break time="500ms"/> is a pause
    paragraph_pause_s: float = 0.0  # silence between paragraphs
    pronunciations: Mapping[str, str] = field(default_factory=dict)  # word -> what is spoken instead

    @property
    def changes_words(self) -> bool:
        """Whether other words may be spoken than were written."""
        return self.text_level in ("clean", "spoken") or bool(self.normalize) or bool(self.pronunciations)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """One request for speech. None means: the default of the checkpoint or the mode."""

    text: str
    voice: str | Voice | None = None  # a preset's name, or a cloned voice
    language: str = "auto"
    instructions: str | None = None
    text_mode: TextMode | None = None
    seed: int | None = None  # None: random; the result reports it
    greedy: bool | None = None  # for all 16 codebooks
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    subtalker_temperature: float | None = None
    subtalker_top_k: int | None = None
    subtalker_top_p: float | None = None
    max_new_tokens: int | None = None
    trim_silence: bool | None = None  # drop the silence before the first sound; None: the engine's setting
    trim_echo: bool | None = None  # drop an echo of the reference; None: the engine's setting
    text_options: TextOptions | None = None  # applied before an engine gets the text; an engine refuses them
    speed: float = 1.0  # 0.25 to 4, at the same pitch; engines refuse it and sample_rate, Oscine.speak applies them
    sample_rate: int | None = None  # of the result in Hz; None: the checkpoint's
    return_codes: bool = False  # the last chunk carries the codes of all frames
    stream_codes: bool = False  # instead: every chunk carries the codes of the frames since the chunk before
    # Set for a continuation: the next segment of a speech whose first segment was admitted. Seconds of audio that its
    # listener has not played yet. A continuation is never refused for load and goes first in the queue.
    continues_s: float | None = None
    # A continuation whose text paused, so that its slot was given back. It goes first too, but waits until the engine
    # has room for one more stream.
    resumes: bool = False

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """The checkpoint's defaults, overridden by this request's values."""
        first = _over(
            defaults.first, greedy=self.greedy, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p
        )
        rest = _over(
            defaults.rest,
            greedy=self.greedy,
            temperature=self.subtalker_temperature,
            top_k=self.subtalker_top_k,
            top_p=self.subtalker_top_p,
        )
        seed = secrets.randbits(63) if self.seed is None else self.seed
        return _over(
            defaults,
            first=first,
            rest=rest,
            seed=seed,
            repetition_penalty=self.repetition_penalty,
            max_new_tokens=self.max_new_tokens,
        )

    def check_delivery(self) -> None:
        """Checks trim_silence, trim_echo, continues_s and that nothing is left to be done outside of an engine. Raises
        RequestError."""
        if self.text_options is not None:
            raise RequestError(
                "an engine speaks the text as it is; prepare it with oscine.text.preparation, or use Oscine.speak",
                "text_options",
            )
        for name, given in (("speed", self.speed != 1.0), ("sample_rate", self.sample_rate is not None)):
            if given:
                message = f"an engine does not change the {name} of its audio; use Oscine.speak, or oscine.encoding"
                raise RequestError(message, name)
        trim, left_s = self.trim_silence, self.continues_s
        if trim is not None and not isinstance(trim, bool):
            raise RequestError(f"trim_silence must be true or false, got {trim!r}", "trim_silence")
        if self.trim_echo is not None and not isinstance(self.trim_echo, bool):
            raise RequestError(f"trim_echo must be true or false, got {self.trim_echo!r}", "trim_echo")
        real = isinstance(left_s, _REAL) and not isinstance(left_s, bool)
        if left_s is not None and not (real and 0 <= left_s <= MAX_CONTINUES_S):
            raise RequestError(
                f"continues_s must be from 0 to {MAX_CONTINUES_S:g} seconds (unplayed audio of the listener); "
                f"leave it out for a new listener, got {left_s!r}",
                "continues_s",
            )


_Params = TypeVar("_Params", DrawParams, SamplingParams)


def _over(params: _Params, **values: object) -> _Params:
    given = {name: value for name, value in values.items() if value is not None}
    return replace(params, **given) if given else params  # type: ignore[arg-type]


# A prompt row is T(text id) plus: nothing, C(codec id), the speaker vector, or the codes of a reference frame, summed.
NO_CODEC = -1
SPEAKER = -2


def reference_frame(index: int) -> int:
    """The codec id that stands for reference frame `index`."""
    return -3 - index


@dataclass(frozen=True, slots=True)
class Prompt:
    """The talker's input as integers and vectors."""

    text_ids: npt.NDArray[np.int64]  # [rows]
    codec_ids: npt.NDArray[np.int64]  # [rows]: codec id, NO_CODEC, SPEAKER or reference_frame(i)
    trailing_ids: npt.NDArray[np.int64]  # text ids added to the generated frames, one each; tts_pad after the last
    speaker: Samples | None = None  # [talker width], for the SPEAKER row
    reference_codes: Codes | None = None  # [reference frames, 16]
    prefix_rows: int = 0  # leading rows that do not depend on the text: shared through the prefix cache

    @property
    def rows(self) -> int:
        return len(self.text_ids)


@dataclass(frozen=True, slots=True)
class Usage:
    """What an utterance consumed: text tokens spoken, frames generated."""

    text_ids: int
    frames: int


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """Audio of an utterance with its position. The last chunk has a finish_reason."""

    pcm: bytes  # PCM16, mono; may be empty on the last chunk
    first_sample: int
    finish_reason: FinishReason | None = None
    error: OscineError | None = None  # with finish_reason "error"
    seed: int = 0
    usage: Usage | None = None  # on the last chunk
    codes: Codes | None = None  # [frames, 16], for a request with return_codes or stream_codes
    echo_s: float = 0.0  # on the last chunk: how much of an echo of the reference was trimmed


@dataclass(frozen=True, slots=True)
class AppendText:
    text: str


@dataclass(frozen=True, slots=True)
class EndText:
    pass


@dataclass(frozen=True, slots=True)
class Cancel:
    pass


Command = AppendText | EndText | Cancel


TICK_BOUNDS_S = (0.002, 0.004, 0.006, 0.008, 0.012, 0.016, 0.024, 0.04, 0.06, 0.08, 0.12, 0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class TickHistogram:
    """Tick durations since the start: counts per bucket of TICK_BOUNDS_S and above the last; not cumulative."""

    counts: tuple[int, ...] = (0,) * (len(TICK_BOUNDS_S) + 1)
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    ready: bool
    slots: int
    slots_active: int
    queued: int
    frames: int  # generated since the start
    tick_s: float  # smoothed over recent ticks
    ticks: TickHistogram = field(default_factory=TickHistogram)
    underruns: int = 0  # times a listener ran out of audio although its text was there, since the start
    prefix_hits: int = 0  # of the prefix cache
    prefix_misses: int = 0
    prefix_bytes: int = 0
    memory_bytes: int = 0  # device memory that the engine holds
    device: str = ""  # such as "NVIDIA H200, bfloat16, CUDA kernels" or "CPU, 1 thread, float32"
    real_time_streams: int = 0  # streams that stay in real time, by the measured tick cost

    @property
    def load(self) -> float:
        """Running and queued streams, as a share of those that it can run in real time."""
        return (self.slots_active + self.queued) / self.capacity

    @property
    def capacity(self) -> int:
        """Streams that it can run in real time."""
        return max(1, min(self.slots, self.real_time_streams or self.slots))


ModelKind = Literal["custom_voice", "voice_design", "base"]
EngineState = Literal["starting", "ready", "restarting", "failed", "stopping", "stopped"]
BEST_STATES: tuple[EngineState, ...] = ("ready", "restarting", "starting", "stopping", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State of the worker process; of several engines, the best one's state."""

    state: EngineState
    pid: int | None = None
    restarts: int = 0  # since the start
    last_reason: str | None = None  # why the worker process ended the last time


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a front end needs to know about a checkpoint, without its weights."""

    name: str
    kind: ModelKind
    speakers: tuple[str, ...]  # lower case; only custom_voice has any
    languages: tuple[str, ...]  # selectable ones, without "auto"
    dialects: tuple[tuple[str, str], ...]  # (speaker, dialect)
    takes_instructions: bool
    sample_rate_hz: int
    samples_per_frame: int
    speaker_width: int  # of a voice's embedding
    instruction_examples: tuple[tuple[str, str], ...] = ()  # (name, instructions) that the checkpoint itself lists
    text_level: TextLevel = "clean"  # how far a text is rewritten by default

    @property
    def clones(self) -> bool:
        return self.kind == "base"


Deliver = Callable[[AudioChunk], None]


class _Engine(Protocol):
    def send(self, utterance_id: str, command: Command) -> None:
        """Sends a command. Unknown or ended utterances are ignored: commands and ends may cross on the way."""

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """A voice from a clip, for any engine of this checkpoint. With the transcript of the clip the model continues
        in its manner (in-context cloning); without it, only the timbre is used. Blocks for up to a second: never call
        it from `deliver`. Raises VoiceError, OverloadedError or EngineError."""

    def status(self) -> EngineStatus:
        """Slots, load and memory, without waiting for the engine."""

    def stop(self, drain_s: float = 0.0) -> None:
        """Refuses new requests, lets running ones continue for up to `drain_s`, then cancels the rest."""


class SpeechEngine(_Engine, Protocol):
    """The engine as a server or a program sees it: in this process, in a worker, or several behind a router."""

    async def submit(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        """Returns when the engine has accepted the request under this id, which no running utterance may have.

        `deliver` gets the utterance's chunks, the last one with a finish_reason. It is called on any thread, perhaps
        before `submit` returns, and must not block. With `streaming_text`, `send` may append text. Raises RequestError,
        OverloadedError or EngineError; nothing is queued then. Cancelling `submit` cancels the utterance."""


class LocalEngine(_Engine, Protocol):
    """An engine of this process, as its worker sees it."""

    def enqueue(
        self, utterance_id: str, request: SpeechRequest, deliver: Deliver, *, streaming_text: bool = False
    ) -> None:
        """`SpeechEngine.submit` without an event loop."""
