"""The words of a text, as timestamps report them, and their times."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_PIECES = re.compile(f"[{_HAN}{_KANA}]|[^{_HAN}{_KANA}]+")
_HAS_CHARACTERS = re.compile(f"[{_HAN}{_KANA}]")
# Small kana and the long-vowel mark belong to the kana before them.
_JOINS_LEFT = "ーｰぁぃぅぇぉゃゅょゎァィゥェォャュョヮ"
_SPOKEN_SYMBOLS = "&@%#°§"


@dataclass(frozen=True, slots=True)
class Word:
    """`text[start:end]` of the text that was split."""

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
    """Seconds in the audio; None if the word could not be aligned."""

    word: str
    start_s: float | None = None
    end_s: float | None = None


def split_words(text: str) -> list[Word]:
    """All that is between white space, in order: punctuation stays with its word, a mark between spaces is a word.
    Chinese and Japanese have no spaces: there a word is one character, with the marks around it."""
    words: list[Word] = []
    for chunk in re.finditer(r"\S+", text):
        start = chunk.start()
        for end in _ends(chunk.group()) if _HAS_CHARACTERS.search(chunk.group()) else [len(chunk.group())]:
            words.append(Word(text[start : chunk.start() + end], start, chunk.start() + end))
            start = chunk.start() + end
    return words


def is_unspaced(char: str) -> bool:
    """Whether this character, or a full-width mark, stands beside its neighbours without a space."""
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
