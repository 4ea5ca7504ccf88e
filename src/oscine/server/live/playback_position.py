"""How much of a text a listener has heard: what a conversation must know when it is interrupted. An estimate, as there
is no aligner here: within a part of the text, time passes evenly over its letters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

_LETTER_S = 0.065  # of a Latin script; a Chinese, Japanese or Korean character lasts as long as three
_WIDE = 3


@dataclass(slots=True)
class Span:
    """A part of a text, and the seconds of its sound."""

    text: str
    start_s: float
    end_s: float


@dataclass(slots=True)
class Heard:
    """One utterance as far as it was sent: whole parts, and the text of the one that was being spoken at its end."""

    utterance_index: int
    sent_s: float = 0.0
    parts: list[Span] = field(default_factory=list)
    unfinished: str = ""

    def end_part(self, text: str) -> None:
        self.parts.append(Span(text, self._part_start_s, self.sent_s))

    def text_until(self, played_s: float) -> str:
        spans = [*self.parts]
        if self.unfinished:
            # Its sound would have gone on beyond what was sent: how long, is guessed.
            likely_s = self._part_start_s + _length(self.unfinished) * self._letter_s
            spans.append(Span(self.unfinished, self._part_start_s, max(self.sent_s, likely_s)))
        return "".join(_until(span, min(played_s, self.sent_s)) for span in spans).strip()

    @property
    def _part_start_s(self) -> float:
        return self.parts[-1].end_s if self.parts else 0.0

    @property
    def _letter_s(self) -> float:
        letters = sum(_length(part.text) for part in self.parts)
        return self._part_start_s / letters if letters and self._part_start_s else _LETTER_S


def listening_to(sent: Iterable[Heard], unplayed_s: float) -> tuple[Heard | None, float]:
    """Which of these utterances, the newest first, is heard by who has so much left to play, and how far into it."""
    for heard in sent:
        if unplayed_s <= heard.sent_s:
            return heard, heard.sent_s - unplayed_s
        unplayed_s -= heard.sent_s
    return None, 0.0


def played_of(asked: Heard, sent: Iterable[Heard], unplayed_s: float) -> float:
    """How far into this utterance somebody is who has so much left to play of all of them, the newest first."""
    for heard in sent:
        if heard is asked:
            return max(0.0, heard.sent_s - unplayed_s)
        unplayed_s = max(0.0, unplayed_s - heard.sent_s)
    return 0.0


def _until(span: Span, played_s: float) -> str:
    if played_s >= span.end_s:
        return span.text
    if played_s <= span.start_s:
        return ""
    letters = _length(span.text) * (played_s - span.start_s) / (span.end_s - span.start_s)
    cut = 0
    for char in span.text:
        letters -= _letters(char)
        if letters < 0:
            break
        cut += 1
    while 0 < cut < len(span.text) and _in_word(span.text[cut - 1], span.text[cut]):
        cut -= 1  # half a word is none
    return span.text[:cut]


def _in_word(before: str, after: str) -> bool:
    return before.isalnum() and after.isalnum() and _letters(before) == _letters(after) == 1


def _length(text: str) -> int:
    return sum(map(_letters, text))


def _letters(char: str) -> int:
    return _WIDE if unicodedata.east_asian_width(char) in ("W", "F") else 1
