"""What a live session tells its client, as typed events. The connection of each protocol renders them in its form."""

from __future__ import annotations

from dataclasses import dataclass

from oscine.server.live.config import LiveConfig
from oscine.speech.events import SegmentEnded, Words
from oscine.speech.plan import SpeechPlan
from oscine.types import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class SessionReady:
    """Settings were accepted."""

    config: LiveConfig
    plan: SpeechPlan
    model: str | None  # its name, if there are several


@dataclass(frozen=True, slots=True)
class TextCommitted:
    """The text so far is spoken to its end."""

    utterance: int
    commit_id: str | int | None  # the client's
    commit: int  # of the utterance, from 0
    chars: int  # since the last commit


@dataclass(frozen=True, slots=True)
class SpeechCancelled:
    """The client stopped the speech."""

    utterance: int | None  # the one that was playing
    played_s: float
    spoken_text: str  # the words of it that were played


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One file of an utterance: all of it, or a sentence."""

    utterance: int
    index: int  # in the utterance
    plan: SpeechPlan


@dataclass(frozen=True, slots=True)
class FileStarted:
    file: LiveFile
    text: str  # of its first segment, as far as it has arrived


@dataclass(frozen=True, slots=True)
class FileAudio:
    """The next bytes of the file, which have audio of this span."""

    file: LiveFile
    data: bytes
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SegmentSpoken:
    file: LiveFile
    segment: SegmentEnded


@dataclass(frozen=True, slots=True)
class WordsTimed:
    file: LiveFile
    words: Words


@dataclass(frozen=True, slots=True)
class FileEnded:
    """The file is complete, or was cut off."""

    file: LiveFile
    finish_reason: FinishReason
    size: int  # bytes
    duration_s: float
    usage: Usage | None = None  # None: it was cut off
    words: tuple[Words, ...] = ()  # of all segments, if the client asked for times
    spoken_text: str | None = None  # the words that were played before it was cancelled


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    utterance: int
    files: int


LiveEvent = (
    SessionReady
    | TextCommitted
    | SpeechCancelled
    | FileStarted
    | FileAudio
    | SegmentSpoken
    | WordsTimed
    | FileEnded
    | UtteranceEnded
)
