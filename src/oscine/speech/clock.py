"""What a listener who plays the audio at once has heard of it: how much is left, and which words were played.

One PlaybackClock per listener tells time: how much of all audio that was sent is unplayed. One UtteranceTimeline per
utterance tells text: which words lie at which second of its audio, and has no clock. `playback_position` combines them,
because one listener may have several utterances left to play.

The words are an estimate, because an aligner would come too late: within a segment, time is spread evenly over the
characters. Where codes contain phones, they say the words (word_position.py).
"""

from __future__ import annotations

import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from oscine.audio.pcm import FRAME_RATE_HZ, Codes
from oscine.speech.word_position import written_chars
from oscine.text.spoken_text import SpokenText
from oscine.types import PhoneTable

_CHAR_S = 0.065  # of a Latin script
_WIDE_CHAR = 3  # a Chinese, Japanese or Korean character lasts as long as three Latin ones


class PlaybackClock:
    """Estimates how much of the sent audio a player that started at once has not played yet."""

    def __init__(self) -> None:
        self._buffer_empty_s: float | None = None  # monotonic time at which the player runs out of audio

    def sent(self, duration_s: float) -> None:
        if duration_s:
            self._buffer_empty_s = max(time.monotonic(), self._buffer_empty_s or 0.0) + duration_s

    def stop(self) -> None:
        """Called when the player has dropped its buffer."""
        self._buffer_empty_s = None

    @property
    def unplayed_s(self) -> float:
        return 0.0 if self._buffer_empty_s is None else max(0.0, self._buffer_empty_s - time.monotonic())


@dataclass(frozen=True, slots=True)
class PhoneReader:
    """Reads words from the codes of an utterance."""

    table: PhoneTable
    speed: float = 1.0

    def text_until(self, content: SpokenText, codes: Codes, end_s: float, played_s: float) -> str:
        """`end_s`: when the audio of these codes ends. Their beginning may have been trimmed."""
        left_s = (end_s - played_s) * self.speed
        slots = (len(codes) - left_s * FRAME_RATE_HZ) * len(self.table.codebooks)
        return content.written[: written_chars(self.table, content, codes, max(0, int(slots)))]


@dataclass(frozen=True, slots=True)
class TimedSegment:
    text: str  # as the user wrote it; empty: a pause
    end_s: float
    content: SpokenText | None = None  # with its codes, if these say the words
    codes: Codes | None = None


@dataclass(slots=True)
class UtteranceTimeline:
    """Says where the words of one utterance lie in its audio, also those of a segment that was cut off."""

    utterance_index: int
    sent_s: float = 0.0
    segments: list[TimedSegment] = field(default_factory=list)
    unfinished_text: str = ""
    unfinished: SpokenText | None = None  # the same, as the model reads it
    reader: PhoneReader | None = None  # None: codes say nothing
    _codes: list[Codes] = field(default_factory=list)  # of the segment that is being sent

    def sent(self, duration_s: float, codes: Codes | None) -> None:
        self.sent_s += duration_s
        if codes is not None and self.reader:
            self._codes.append(codes)

    def end_segment(self, text: str, spoken: SpokenText | None = None) -> None:
        """`spoken`: what the model read, if it is not the same."""
        content = spoken or SpokenText.unchanged(text)
        self.segments.append(TimedSegment(text, self.sent_s, content, self._taken_codes()))

    def pause(self, seconds: float) -> None:
        """Notes silence that is sent next, as a segment without text."""
        start_s = max([self.sent_s, *(one.end_s for one in self.segments[-1:])])
        self.segments.append(TimedSegment("", start_s + seconds))

    def text_until(self, played_s: float) -> str:
        start_s, speech_s, chars, spoken = 0.0, 0.0, 0, ""
        played_s = min(played_s, self.sent_s)
        for one in self.segments:
            spoken += self._until(one, start_s, played_s)
            speech_s += one.end_s - start_s if one.text else 0.0
            start_s, chars = one.end_s, chars + _length(one.text)
        if self._codes and self.unfinished:
            last = TimedSegment(self.unfinished_text, self.sent_s, self.unfinished, np.concatenate(self._codes))
            spoken += self._until(last, start_s, played_s, ends=False)
            return spoken.strip()
        char_s = speech_s / chars if chars and speech_s else _CHAR_S
        likely_end_s = max(self.sent_s, start_s + _length(self.unfinished_text) * char_s)
        spoken += _text_until(self.unfinished_text, start_s, likely_end_s, played_s)
        return spoken.strip()

    def _until(self, one: TimedSegment, start_s: float, played_s: float, *, ends: bool = True) -> str:
        if not self.reader or one.codes is None or one.content is None:
            return _text_until(one.text, start_s, one.end_s, played_s)
        if played_s <= start_s:
            return ""
        if ends and played_s >= one.end_s:
            return one.text
        return self.reader.text_until(one.content, one.codes, one.end_s, played_s)

    def _taken_codes(self) -> Codes | None:
        taken, self._codes = self._codes, []
        return np.concatenate(taken) if taken else None


@dataclass(frozen=True, slots=True)
class PlaybackPosition:
    timeline: UtteranceTimeline | None = None  # None: nothing is playing
    played_s: float = 0.0

    @property
    def utterance_index(self) -> int | None:
        return self.timeline.utterance_index if self.timeline else None

    @property
    def text(self) -> str:
        return self.timeline.text_until(self.played_s) if self.timeline else ""


def playback_position(
    timelines: Iterable[UtteranceTimeline],
    unplayed_s: float,
    utterance_index: int | None = None,
    played_s: float | None = None,
) -> PlaybackPosition:
    """The position of a player that has `unplayed_s` of these utterances (newest first) left to play. `utterance_index`
    and `played_s` are the client's own report, which takes precedence."""
    for timeline in timelines:
        estimate_s = timeline.sent_s - unplayed_s
        playing = timeline.sent_s > 0 and estimate_s >= 0
        if timeline.utterance_index == utterance_index or (utterance_index is None and playing):
            position_s = max(0.0, estimate_s) if played_s is None else min(played_s, timeline.sent_s)
            return PlaybackPosition(timeline, position_s)
        unplayed_s = max(0.0, -estimate_s)
    return PlaybackPosition()


def _text_until(text: str, start_s: float, end_s: float, played_s: float) -> str:
    if played_s >= end_s:
        return text
    if played_s <= start_s:
        return ""
    reach = list(accumulate(map(_char_length, text), initial=0))
    cut = bisect_right(reach, reach[-1] * (played_s - start_s) / (end_s - start_s)) - 1
    while 0 < cut < len(text) and _in_word(text[cut - 1], text[cut]):
        cut -= 1  # a half-spoken word does not count
    return text[:cut]


def _in_word(before: str, after: str) -> bool:
    return before.isalnum() and after.isalnum() and _char_length(before) == _char_length(after) == 1


def _length(text: str) -> int:
    return sum(map(_char_length, text))


def _char_length(char: str) -> int:
    return _WIDE_CHAR if unicodedata.east_asian_width(char) in ("W", "F") else 1
