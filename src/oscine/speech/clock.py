"""What a listener who plays the audio at once has heard of it: how much is left, and which words were played.

One PlaybackClock per listener tells time: how much of all audio that was sent is unplayed. One UtteranceTimeline per
utterance tells text: which words lie at which second of its audio, and has no clock. `playback_position` combines them,
because one listener may have several utterances left to play.

The words are an estimate, because an aligner would come too late: within a segment, time is spread evenly over the
characters.
"""

from __future__ import annotations

import time
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

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


@dataclass(slots=True)
class UtteranceTimeline:
    """Says where the words of one utterance lie in its audio, also those of a segment that was cut off."""

    utterance_index: int
    sent_s: float = 0.0
    segments: list[tuple[str, float]] = field(default_factory=list)  # text, and the time at which it ends
    unfinished_text: str = ""

    def end_segment(self, text: str) -> None:
        self.segments.append((text, self.sent_s))

    def pause(self, seconds: float) -> None:
        """Notes silence that is sent next, as a segment without text."""
        start_s = max([self.sent_s, *(end_s for _, end_s in self.segments[-1:])])
        self.segments.append(("", start_s + seconds))

    def text_until(self, played_s: float) -> str:
        start_s, speech_s, chars, spoken = 0.0, 0.0, 0, ""
        for text, end_s in self.segments:
            spoken += _text_until(text, start_s, end_s, min(played_s, self.sent_s))
            speech_s += end_s - start_s if text else 0.0
            start_s, chars = end_s, chars + _length(text)
        char_s = speech_s / chars if chars and speech_s else _CHAR_S
        likely_end_s = max(self.sent_s, start_s + _length(self.unfinished_text) * char_s)
        spoken += _text_until(self.unfinished_text, start_s, likely_end_s, min(played_s, self.sent_s))
        return spoken.strip()


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
