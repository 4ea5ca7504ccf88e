"""What was asked, what comes back, and every error a caller may meet. No torch here: these names are for everyone.

OscineError
 ├─ CheckpointError   the model folder or hub id cannot be used as it is
 └─ RequestError      this one request cannot be spoken; others are not affected
     ├─ VoiceError    the voice, clip or saved voice file cannot be used
     └─ TooLongError  the prompt does not fit the model's positions
"""

from __future__ import annotations

import difflib
import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from oscine.voice import Voice

FRAME_RATE_HZ = 12.5
CODEBOOKS = 16

TextMode = Literal["whole", "streaming"]
FinishReason = Literal["stop", "length"]
Codes = npt.NDArray[np.int64]  # [frames, 16]
Samples = npt.NDArray[np.float32]  # mono, -1..1


class OscineError(Exception):
    """The root of every error that Oscine raises on purpose."""


class CheckpointError(OscineError):
    """The model folder or hub id cannot be used as it is."""


class RequestError(OscineError, ValueError):
    """This one request cannot be spoken. `param` names the field that was wrong, where there is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class VoiceError(RequestError):
    """The voice, clip or saved voice file cannot be used."""


class TooLongError(RequestError):
    """The prompt does not fit the model's positions."""


def unknown_choice(what: str, asked: str, choices: Iterable[str]) -> str:
    """The one wording for a name that is not on a list: what was asked, the nearest, all that is possible."""
    names = sorted(choices)
    near = difflib.get_close_matches(asked.lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    possible = ", ".join(names) if names else "none: this checkpoint has no such names"
    return f"unknown {what} {asked!r}{hint} (possible: {possible})"


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How one code is drawn from its logits. `top_k` 0 and `top_p` 1.0 mean off."""

    greedy: bool = False
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0

    def check(self, prefix: str = "") -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise RequestError(
                f"{prefix}temperature must be above 0, got {self.temperature}; for no randomness ask for greedy",
                f"{prefix}temperature",
            )
        if self.top_k < 0:
            raise RequestError(f"{prefix}top_k must be 0 (off) or more, got {self.top_k}", f"{prefix}top_k")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"{prefix}top_p must be above 0 and at most 1, got {self.top_p}", f"{prefix}top_p")


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
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise RequestError(
                f"repetition_penalty must be above 0, got {self.repetition_penalty}", "repetition_penalty"
            )
        if self.max_new_tokens < 2:
            raise RequestError(
                f"max_new_tokens must be at least 2 (it gives one frame less), got {self.max_new_tokens}",
                "max_new_tokens",
            )
        if not 0 <= self.seed < 2**64:
            raise RequestError(f"seed must be between 0 and 2**64 - 1, got {self.seed}", "seed")


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

    def sampling(self, defaults: SamplingParams) -> SamplingParams:
        """The checkpoint's defaults with this request's own values over them."""
        greedy = None if self.greedy is None else bool(self.greedy)
        first = _over(defaults.first, greedy=greedy, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        rest = _over(
            defaults.rest,
            greedy=greedy,
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
class AudioChunk:
    """A piece of one utterance, as it was made. The last one carries the reason why it is the last."""

    row: int  # which request of the batch
    first_frame: int
    samples: Samples
    codes: Codes  # [frames, 16]
    seed: int
    finish_reason: FinishReason | None = None
