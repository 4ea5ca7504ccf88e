"""Results and the engine protocol. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import Codes, Samples
from oscine.errors import OscineError
from oscine.request import SpeechRequest
from oscine.text.options import TextLevel
from oscine.voice import Voice

# stop: end of speech. length: the frame limit. runaway: runaway detection ended it (the good audio is kept).
FinishReason = Literal["stop", "length", "runaway", "cancelled", "error"]
ReportProgress = Callable[[str, int, int], None]  # stage, steps done, steps in all
ClipData = bytes | tuple[npt.NDArray[np.generic], int]  # an audio file's content, or samples with their rate in Hz


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
class PhoneTable:
    """What letters sound like, for codes that contain phones (speech/word_position.py); costs are 0.01 nats."""

    codebooks: tuple[int, ...]  # those of a frame's phones, in the order of time; phone 0 is silence
    added: tuple[int, ...]  # costs of each phone without a letter
    letters: Mapping[str, tuple[int, ...]]  # costs of a letter without a phone, and with each phone


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
    phone_table: PhoneTable | None = None  # of codes that contain phones

    @property
    def clones(self) -> bool:
        """Whether it makes voices from clips."""
        return self.kind == "base"

    @property
    def takes_voices(self) -> bool:
        """Whether it speaks with voices that were made before. A CustomVoice checkpoint's presets are vectors of the
        same width, so it takes another one in their place; it was not trained for that."""
        return self.kind != "voice_design"


Deliver = Callable[[AudioChunk], None]


class _Engine(Protocol):
    def send(self, utterance_id: str, command: Command) -> None:
        """Sends a command. Unknown or ended utterances are ignored: commands and ends may cross on the way."""

    def clone(self, clip: ClipData, transcript: str | None = None) -> Voice:
        """A voice from a clip, for any engine of this checkpoint. With the transcript of the clip the model continues
        in its manner (in-context cloning); without it, only the timbre is used. Blocks for up to a second: never call
        it from `deliver`. Raises VoiceError, OverloadedError or EngineError."""

    def preset(self, name: str) -> Voice:
        """A preset voice as the vector that stands for it, to mix with others. Blocks as `clone` does. Raises
        VoiceError or EngineError."""

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
