"""What a live session tells its client, as typed events. The connection of each protocol renders them in its form."""

from __future__ import annotations

from dataclasses import dataclass, field

from oscine.server.live.config import LiveConfig
from oscine.speech.events import Audio, Ended, SegmentEnded, Started, Words
from oscine.speech.plan import SpeechPlan


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


@dataclass(slots=True, eq=False)
class LiveFile:
    """One file of an utterance: all of it, or a sentence; and what was sent of it."""

    utterance: int
    index: int  # in the utterance
    plan: SpeechPlan
    samples: int = 0  # of the engine
    size: int = 0  # bytes
    words: list[Words] = field(default_factory=list)
    spoken_text: str | None = None  # what was played before it was cancelled

    @property
    def duration_s(self) -> float:
        return self.plan.playback_s(self.samples)


@dataclass(frozen=True, slots=True)
class InFile:
    """An event of the speech. Audio has data, which is the whole file if the client asked for that."""

    file: LiveFile
    event: Started | Audio | SegmentEnded | Words | Ended


@dataclass(frozen=True, slots=True)
class UtteranceEnded:
    utterance: int
    files: int


LiveEvent = SessionReady | TextCommitted | SpeechCancelled | InFile | UtteranceEnded
