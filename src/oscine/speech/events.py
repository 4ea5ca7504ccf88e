"""What happens while a text is spoken, as typed events. Each response, protocol and program renders them in its form.

A speech is one file, or one for each sentence:

    Started ─► Audio ─► ... ─► SegmentEnded ─► Audio ─► ... ─► SegmentEnded ─► Ended

Words follow the segment that they belong to, at the latest before Ended; Paused comes before the silence of a pause.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oscine.align.word_split import TimedWord
from oscine.audio.pcm import CODEBOOKS, Codes
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
