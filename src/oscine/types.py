"""What was asked, what comes back, and every error a caller may meet. No torch here: these names are for everyone.

OscineError
 ├─ CheckpointError   the model folder or hub id cannot be used as it is
 ├─ ConfigError       settings that cannot work, found before any weight is loaded
 ├─ OverloadedError   not now: says in how many seconds to try again
 ├─ EngineError       the engine itself failed or is gone; the request may be sent again
 └─ RequestError      this one request cannot be spoken; others are not affected
     ├─ VoiceError    the voice, clip or saved voice file cannot be used
     └─ TooLongError  the prompt does not fit the model's positions
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from oscine.voice import Voice

FRAME_RATE_HZ = 12.5
CODEBOOKS = 16
MAX_CONTINUES_S = 3600.0  # the largest SpeechRequest.continues_s: who has more to play is in no hurry

TextMode = Literal["whole", "streaming"]
# stop: the model ended its speech. length: the frame limit. runaway: it never would have ended (the good part is kept).
FinishReason = Literal["stop", "length", "runaway", "cancelled", "error"]
Codes = npt.NDArray[np.int64]  # [frames, 16]
Samples = npt.NDArray[np.float32]  # mono, -1..1
ClipData = bytes | tuple[npt.NDArray[np.generic], int]  # an audio file's content, or samples with their rate in Hz


class OscineError(Exception):
    """The root of every error that Oscine raises on purpose."""


class CheckpointError(OscineError):
    """The model folder or hub id cannot be used as it is."""


class ConfigError(OscineError, ValueError):
    """Settings that cannot work, found before any weight is loaded."""


class OverloadedError(OscineError):
    """Not now: every listener that was let in stays in real time, so this one has to wait."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineError(OscineError):
    """The engine itself failed or is gone; the request may be sent again."""


class RequestError(OscineError, ValueError):
    """This one request cannot be spoken. `param` names the field that was wrong, where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class VoiceError(RequestError):
    """The voice, clip or saved voice file cannot be used."""


class TooLongError(RequestError):
    """The prompt does not fit the model's positions."""


_MAX_NAME_CHARS = 100  # a longer name is cut before the nearest one is looked for
_MAX_NAMES_LISTED = 40


def unknown_choice(what: str, name: str, choices: Iterable[str]) -> str:
    """The message for a name that is not on a list: the name, the nearest choice, and the choices."""
    names = sorted(choices)
    name = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "..."
    by_lower = {choice.lower(): choice for choice in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"; did you mean {by_lower[near[0]]!r}?" if near else ""
    listed = ", ".join(names[:_MAX_NAMES_LISTED]) or "none: this checkpoint has no such names"
    more = f" and {len(names) - _MAX_NAMES_LISTED} more" if len(names) > _MAX_NAMES_LISTED else ""
    return f"unknown {what} {name!r}{hint} (possible: {listed}{more})"


# Beyond these, fp32 overflows: the probabilities would be NaN and every draw, silently, code 0.
_LEAST, _MOST = 1e-6, 1e6
_WHOLE = (int, np.integer)
_REAL = (*_WHOLE, float, np.floating)


def _check_factor(name: str, value: object, hint: str = "") -> None:
    if not isinstance(value, _REAL) or isinstance(value, bool) or not _LEAST <= value <= _MOST:
        raise RequestError(f"{name} must be a number above 0 ({_LEAST:g} to {_MOST:g}), got {value!r}{hint}", name)


def _check_whole(name: str, value: object, least: int, end: float, rule: str) -> None:
    if not isinstance(value, _WHOLE) or isinstance(value, bool) or not least <= value < end:
        raise RequestError(f"{name} must be {rule}, got {value!r}", name)


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one code is drawn from its logits. `top_k` 0 and `top_p` 1.0 mean off."""

    greedy: bool = False
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0

    @property
    def tail(self) -> float:
        """The share of the least likely ids that top-p cuts off; 0: off. Subtracted here, in double precision, as
        upstream does it: in fp32 a share of exactly this size would fall to the other side."""
        return 1.0 - self.top_p

    def check(self, prefix: str = "") -> None:
        if not isinstance(self.greedy, bool):
            raise RequestError(f"greedy must be true or false, got {self.greedy!r}", "greedy")
        _check_factor(f"{prefix}temperature", self.temperature, "; for no randomness ask for greedy")
        _check_whole(f"{prefix}top_k", self.top_k, 0, 2**31, "a whole number, 0 (off) or more")
        if not isinstance(self.top_p, _REAL) or not 0 < self.top_p <= 1:
            raise RequestError(
                f"{prefix}top_p must be a number above 0 and at most 1 (off), got {self.top_p!r}", f"{prefix}top_p"
            )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Draws of code 0 (`first`) and of codes 1..15 (`rest`), as the published generation_config.json has them."""

    first: DrawParams = field(default_factory=DrawParams)
    rest: DrawParams = field(default_factory=DrawParams)
    repetition_penalty: float = 1.05
    # Official meaning: drawn code-0 tokens, the last of which is never expanded, so N gives at most N-1 frames.
    max_new_tokens: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        self.first.check()
        self.rest.check("subtalker_")
        _check_factor("repetition_penalty", self.repetition_penalty, "; 1 is off")
        rule = "a whole number of at least 2 (it gives one frame less)"
        _check_whole("max_new_tokens", self.max_new_tokens, 2, float("inf"), rule)
        _check_whole("seed", self.seed, 0, 2**64, "a whole number between 0 and 2**64 - 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """What was asked, as it was asked. None means: as the checkpoint or the mode has it."""

    text: str
    voice: str | Voice | None = None  # a preset's name, or a cloned voice
    language: str = "auto"
    instruct: str | None = None
    text_mode: TextMode | None = None
    seed: int | None = None  # None: drawn anew, and told in the result
    greedy: bool | None = None  # for all 16 codebooks
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    subtalker_temperature: float | None = None
    subtalker_top_k: int | None = None
    subtalker_top_p: float | None = None
    max_new_tokens: int | None = None
    trim_silence: bool | None = None  # leave the silence before the first sound out; None: as the engine has it
    # The next part of a speech whose listener was let in already, and the seconds that this listener still has to play:
    # never refused for load, first in the queue, and due when they are over.
    continues_s: float | None = None

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """The checkpoint's defaults with this request's own values over them."""
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
        """How it is to be heard. Raises RequestError."""
        trim, left_s = self.trim_silence, self.continues_s
        if trim is not None and not isinstance(trim, bool):
            raise RequestError(f"trim_silence must be true or false, or be left out, got {trim!r}", "trim_silence")
        real = isinstance(left_s, _REAL) and not isinstance(left_s, bool)
        if left_s is not None and not (real and 0 <= left_s <= MAX_CONTINUES_S):
            raise RequestError(
                f"continues_s must be a number of seconds from 0 to {MAX_CONTINUES_S:g} (what the listener still has "
                f"to play), or be left out for a new listener, got {left_s!r}",
                "continues_s",
            )


_Params = TypeVar("_Params", DrawParams, SamplingParams)


def _over(params: _Params, **values: object) -> _Params:
    return replace(params, **{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]


# A prompt row is T(text id) plus one of: nothing, C(codec id), the speaker vector, a reference frame's summed codes.
NO_CODEC = -1
SPEAKER = -2


def reference_frame(index: int) -> int:
    """The codec-side entry that stands for reference frame `index`."""
    return -3 - index


@dataclass(frozen=True, slots=True)
class Prompt:
    """The talker's input as integers and vectors: everything a model needs, nothing it has to know about requests."""

    text_ids: npt.NDArray[np.int64]  # [rows]
    codec_ids: npt.NDArray[np.int64]  # [rows]: codec id, NO_CODEC, SPEAKER or reference_frame(i)
    trailing_ids: npt.NDArray[np.int64]  # text ids added to the frames as they are made; tts_pad after the last
    speaker: Samples | None = None  # [talker width], for the SPEAKER row
    reference_codes: Codes | None = None  # [reference frames, 16]
    prefix_rows: int = 0  # rows from the first on that do not depend on the text to speak: worth keeping

    @property
    def rows(self) -> int:
        return len(self.text_ids)


@dataclass(frozen=True, slots=True)
class Speech:
    """One finished utterance."""

    audio: Samples
    sample_rate: int
    codes: Codes
    finish_reason: FinishReason
    seed: int

    @property
    def duration_s(self) -> float:
        return len(self.audio) / self.sample_rate


@dataclass(frozen=True, slots=True)
class SpokenFrames:
    """A piece of one utterance of a batch, as the reference path makes it."""

    row: int  # which request of the batch
    first_frame: int
    samples: Samples
    codes: Codes  # [frames, 16]
    seed: int
    finish_reason: FinishReason | None = None  # on the last piece


@dataclass(frozen=True, slots=True)
class Usage:
    """What an utterance took: text ids spoken (without the prompt's own), frames made."""

    text_ids: int
    frames: int


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """What a listener gets: sound with its place in the utterance. The last chunk says why it is the last."""

    pcm: bytes  # PCM16, mono; may be empty on the last chunk
    first_sample: int
    finish_reason: FinishReason | None = None
    error: OscineError | None = None  # with finish_reason "error"
    seed: int = 0
    usage: Usage | None = None  # on the last chunk


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
    """How long ticks took since the start: counts up to each of TICK_BOUNDS_S, and beyond the last; not cumulative."""

    counts: tuple[int, ...] = (0,) * (len(TICK_BOUNDS_S) + 1)
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    ready: bool
    slots: int
    slots_active: int
    queued: int
    frames: int  # made since the start
    tick_s: float  # of the last ticks, smoothed
    ticks: TickHistogram = field(default_factory=TickHistogram)
    underruns: int = 0  # times that a listener ran dry while its text was there, since the start
    prefix_hits: int = 0  # prompts whose beginning was kept from another one
    prefix_misses: int = 0
    prefix_bytes: int = 0
    memory_bytes: int = 0  # of the device, held by the engine


EngineState = Literal["starting", "ready", "restarting", "failed", "stopping", "stopped"]


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How the process of an engine is doing; of several engines, the best one's state."""

    state: EngineState
    pid: int | None = None
    restarts: int = 0  # since the start
    last_reason: str | None = None  # why the engine process ended the last time


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a front end must know of a checkpoint, without its weights or torch."""

    name: str
    kind: Literal["custom_voice", "voice_design", "base"]
    speakers: tuple[str, ...]  # lower case; none but for custom_voice
    languages: tuple[str, ...]  # that can be asked for, without "auto"
    dialects: tuple[tuple[str, str], ...]  # (speaker, dialect that he speaks)
    takes_instructions: bool
    sample_rate_hz: int
    samples_per_frame: int
    speaker_width: int  # of a voice's embedding

    @property
    def clones(self) -> bool:
        return self.kind == "base"


class SpeechEngine(Protocol):
    """What a server or a program talks to: an engine in this process, in another one, or several behind a router."""

    def submit(
        self, request: SpeechRequest, deliver: Callable[[AudioChunk], None], *, streaming_text: bool = False
    ) -> str:
        """Checks the request and queues it; chunks arrive through `deliver` on another thread, the last one with a
        finish_reason. Returns the utterance's id. Raises RequestError, OverloadedError or EngineError: nothing was
        queued then. With `streaming_text`, more text may follow by `tell`."""

    def tell(self, utterance_id: str, command: Command) -> None:
        """An utterance that has ended, or never was, is no error: commands and ends cross on the way."""

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """A voice from a clip, for any number of requests to any engine of this checkpoint. With the words said in it,
        the model continues in that manner (in-context cloning); without, it takes the timbre alone. Waits for the
        voice, which may take a second: never to be called in `deliver`. Raises VoiceError, OverloadedError or
        EngineError."""

    def status(self) -> EngineStatus: ...

    def stop(self, drain_s: float = 0.0) -> None:
        """Refuses new requests, lets running ones finish for up to `drain_s`, ends the rest as cancelled."""
