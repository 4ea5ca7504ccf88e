"""Splits a text into the words that timestamps report, and maps their times to the user's words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from oscine.text.spoken_text import SpokenText

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_PIECES = re.compile(f"[{_HAN}{_KANA}]|[^{_HAN}{_KANA}]+")
_HAS_CHARACTERS = re.compile(f"[{_HAN}{_KANA}]")
# Small kana and the long-vowel mark belong to the kana before them.
_JOINS_LEFT = "ーｰぁぃぅぇぉゃゅょゎァィゥェォャュョヮ"
_SPOKEN_SYMBOLS = "&@%#°§"


@dataclass(frozen=True, slots=True)
class Word:
    """A word at `text[start:end]` of the text that was split."""

    text: str
    start: int
    end: int

    @property
    def spoken(self) -> tuple[int, int] | None:
        """The range from the first to the last character that has a sound; None for marks alone."""
        sounds = [at for at, char in enumerate(self.text, self.start) if _is_spoken(char)]
        return (sounds[0], sounds[-1] + 1) if sounds else None


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A word and its seconds in the audio; None if it could not be aligned."""

    word: str
    start_s: float | None = None
    end_s: float | None = None
    speaker: str | None = None  # in a dialogue, for subtitles


def split_words(text: str) -> list[Word]:
    """Splits at white space: punctuation stays with its word, and a mark between spaces is a word. Chinese and Japanese
    have no spaces: there a word is one character with the marks around it."""
    words: list[Word] = []
    for chunk in re.finditer(r"\S+", text):
        start = chunk.start()
        for end in _ends(chunk.group()) if _HAS_CHARACTERS.search(chunk.group()) else [len(chunk.group())]:
            words.append(Word(text[start : chunk.start() + end], start, chunk.start() + end))
            start = chunk.start() + end
    return words


def is_unspaced(char: str) -> bool:
    """Whether this character belongs to a script without spaces, or is a full-width mark."""
    return bool(_HAS_CHARACTERS.match(char)) or unicodedata.east_asian_width(char) in ("W", "F")


def _ends(chunk: str) -> Iterator[int]:
    """Yields where the units of a text without spaces end."""
    starts = []
    for piece in _PIECES.finditer(chunk):
        sound = next((at for at in range(*piece.span()) if _is_spoken(chunk[at])), None)
        if sound is None or chunk[sound] in _JOINS_LEFT:
            continue
        start = sound
        while start > 0 and unicodedata.category(chunk[start - 1]) in ("Ps", "Pi"):  # an opening bracket or quote
            start -= 1
        starts.append(start)
    yield from starts[1:]
    yield len(chunk)


def _is_spoken(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char) in ("Sc", "Sm") or char in _SPOKEN_SYMBOLS


# --- Times of the user's words if the model read others: "$5" was "five dollars".


@dataclass(slots=True)
class _Span:
    """Characters of the written text that are spoken together."""

    start: int
    end: int
    start_s: float
    end_s: float


def written_words(text: SpokenText, spoken: Sequence[TimedWord]) -> list[TimedWord]:
    """Returns the words of `text.written` with times from those of `text.spoken`. Words that were replaced together
    share their time by length."""
    spans = _spans(text, spoken)
    found: list[TimedWord] = []
    words = split_words(text.written)
    while words and spans:
        span = spans.pop(0)
        ends = [index for index, word in enumerate(words) if word.start < span.end]
        if not ends:
            continue
        count = len(ends)
        while spans and spans[0].start < words[count - 1].end:  # the word continues in the next span
            span = _Span(span.start, spans[0].end, span.start_s, spans.pop(0).end_s)
        found += _shared(words[:count], span)
        words = words[count:]
    last_s = found[-1].end_s if found else None
    return found + [TimedWord(word.text, last_s, last_s) for word in words]


def _spans(text: SpokenText, spoken: Sequence[TimedWord]) -> list[_Span]:
    spans: list[_Span] = []
    for word, timed in zip(split_words(text.spoken), spoken, strict=True):
        if timed.start_s is None or timed.end_s is None:
            continue
        start, end = text.written_range(word.start, word.end)
        if spans and start < spans[-1].end:
            spans[-1].end, spans[-1].end_s = max(end, spans[-1].end), timed.end_s
        else:
            spans.append(_Span(start, end, timed.start_s, timed.end_s))
    return spans


def _shared(words: Sequence[Word], span: _Span) -> list[TimedWord]:
    chars = sum(len(word.text) for word in words)
    found, at = [], 0
    for word in words:
        start_s, end_s = (
            span.start_s + (span.end_s - span.start_s) * passed / chars for passed in (at, at + len(word.text))
        )
        found.append(TimedWord(word.text, round(start_s, 3), round(end_s, 3)))
        at += len(word.text)
    return found
