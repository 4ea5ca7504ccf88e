"""What happens while a text is spoken, as typed events. Each response, protocol and program renders them in its form.

A speech is one file, or one for each sentence:

    Started ─► Audio ─► ... ─► SegmentEnded ─► Audio ─► ... ─► SegmentEnded ─► Ended

Words follow the segment that they belong to, at the latest before Ended; Paused comes before the silence of a pause.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oscine.align.word_split import TimedWord
from oscine.audio.clips import pcm16, write_audio_file
from oscine.audio.pcm import CODEBOOKS, Codes, Samples
from oscine.errors import OscineError, RequestError, unknown_choice
from oscine.request import SpeechRequest
from oscine.text.spoken_text import SpokenText
from oscine.types import FinishReason, Usage

NO_USAGE = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """A turn of a dialogue. In a script, the segments after it are its own."""

    index: int
    voice: str | None  # the name of the voice, if it has one
    pause_s: float  # before it
    request: SpeechRequest  # that speaks it alone
    warning: str | None = None  # about its voice, if the turn came after the settings were answered


@dataclass(frozen=True, slots=True)
class Started:
    """A file begins. Nothing comes before it, so that a refusal needs no event."""

    text: str  # of the first segment, as the user wrote it; text that arrives in pieces may still grow
    remembered: bool | None = None  # its first segment comes from the phrase cache; None: the cache is not used


@dataclass(frozen=True, slots=True)
class Audio:
    """The next piece of the file."""

    pcm: bytes  # 16-bit samples as the engine made them; may be empty
    data: bytes  # what is ready of the file's bytes
    # Those of the segment, with its last audio (return_codes); or of the frames since the audio before (stream_codes).
    codes: Codes | None = None
    ends_segment: bool = False  # SegmentEnded follows
    last: bool = False  # Ended follows, perhaps after Words


@dataclass(frozen=True, slots=True)
class Paused:
    """Silence of this length follows. Before the first segment it is sent with that segment's audio."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SegmentEnded:
    """All audio of a segment was sent. Times are those of the file."""

    index: int  # in the speech
    text: str  # as the user wrote it
    start_s: float
    end_s: float
    spoken: SpokenText | None = None  # what the model read, if it is not the same
    turn: SpokenTurn | None = None  # of a dialogue


@dataclass(frozen=True, slots=True)
class Words:
    """All words of a segment, in order; without times if `warning` says why."""

    index: int  # of the segment
    words: tuple[TimedWord, ...]  # seconds in the file
    warning: str | None = None
    turn: SpokenTurn | None = None  # of a dialogue


@dataclass(frozen=True, slots=True)
class Ended:
    """The file is complete, or was cut off."""

    finish_reason: FinishReason
    usage: Usage = NO_USAGE  # of all segments
    echo_s: float = 0.0  # echoes of the reference that were trimmed, before a change of speed

    @property
    def cut_off(self) -> bool:
        return self.finish_reason in ("cancelled", "error")


SpeechEvent = Started | Audio | Paused | SegmentEnded | Words | Ended


class WholeFile:
    """The events of a file, for those who take it when it is complete."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._codes: list[Codes] = [np.zeros((0, CODEBOOKS), np.int64)]
        self.words: list[Words] = []
        self._end: Ended | None = None

    def add(self, event: SpeechEvent) -> None:
        match event:
            case Audio():
                self._pieces.append(event.data)
                self._codes += [] if event.codes is None else [event.codes]
            case Words():
                self.words.append(event)
            case Ended():
                self._end = event

    @property
    def data(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def codes(self) -> Codes:
        return np.concatenate(self._codes)

    @property
    def end(self) -> Ended:
        assert self._end, "the file is complete"
        return self._end


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Speech:
    """A finished speech. A notebook shows it as a player."""

    audio: Samples  # float32, -1..1, mono
    sample_rate: int  # Hz
    codes: Codes  # [frames, 16]: what the model generated, before speed and sample_rate
    finish_reason: FinishReason  # "stop": the end; "length": max_new_tokens; "runaway": ended by runaway detection
    seed: int  # repeats the speech

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.audio) / self.sample_rate

    def __repr__(self) -> str:
        return f"Speech({self.duration_s:.2f} s at {self.sample_rate} Hz, {self.finish_reason}, seed={self.seed})"

    def encode(self, format_name: str = "wav") -> bytes:
        """The bytes of an audio file: wav, mp3, opus, flac, aac, or raw pcm (16-bit, mono); mulaw, alaw or
        g722 for telephones."""
        from oscine.audio.encoders import encode_whole  # here: codecs take time to load

        return encode_whole(format_name, pcm16(self.audio).astype("<i2").tobytes(), rate_hz=self.sample_rate)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file atomically; its suffix selects the format."""
        write_audio_file(path, self.encode(format_of(path)))

    def play(self) -> None:
        """Plays on the default output device and waits until the end. Needs `pip install 'oscine[play]'`."""
        device = sound_device()
        device.play(self.audio, self.sample_rate)
        device.wait()

    def _repr_html_(self) -> str:
        content = base64.b64encode(self.encode("mp3")).decode()
        return f'<audio controls src="data:audio/mpeg;base64,{content}"></audio><br>{self!r}'


def format_of(path: str | os.PathLike[str]) -> str:
    """The audio format of a file name's suffix; without a suffix, wav."""
    return format_named(Path(path).suffix.lower().removeprefix(".") or "wav", f"{str(path)!r}")


def format_named(name: str, source: str) -> str:
    """The audio format of this name, which `source` gave: an option, or a file. Raises RequestError."""
    from oscine.audio.encoders import FORMATS

    known = {"ogg": "opus", "raw": "pcm", "ulaw": "mulaw"}.get(name.lower(), name.lower())
    if known not in FORMATS:
        raise RequestError(f"{source}: {unknown_choice('audio format', name, FORMATS)}", "output")
    return known


def sound_device() -> Any:
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: the PortAudio library is missing
        raise OscineError(
            f"cannot play audio: {error}; install it with `pip install 'oscine[play]'` (on Linux also libportaudio2)"
        ) from None
    return sounddevice
