"""Pronunciation entries of a request: whole words and what is spoken instead of them."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache

from oscine.errors import RequestError
from oscine.text.scanner import Match, NeedMoreText

MAX_ENTRIES = 200
MAX_WORD_CHARS = 64
MAX_SPOKEN_CHARS = 128
_PARAM = "pronunciations"


def check_pronunciations(entries: object) -> None:
    """Raises RequestError."""
    if not isinstance(entries, Mapping):
        raise RequestError(
            f'pronunciations must be an object such as {{"Oscine": "OSS-een"}}, got {type(entries).__name__}', _PARAM
        )
    if len(entries) > MAX_ENTRIES:
        raise RequestError(f"pronunciations has {len(entries)} entries, the limit is {MAX_ENTRIES}", _PARAM)
    for word, spoken in entries.items():
        _check_entry(word, spoken)


def _check_entry(word: object, spoken: object) -> None:
    for what, text, limit in (("word", word, MAX_WORD_CHARS), ("spoken form", spoken, MAX_SPOKEN_CHARS)):
        if not isinstance(text, str):
            raise RequestError(f"pronunciations: a {what} must be a string, got {type(text).__name__}", _PARAM)
        if not any(map(str.isalnum, text)) or not text.isprintable() or text != text.strip():
            raise RequestError(
                f"pronunciations: the {what} {text[:limit]!r} must hold a letter or digit, no control characters, and "
                "no white space at its ends",
                _PARAM,
            )
        if len(text) > limit:
            raise RequestError(f"pronunciations: a {what} has {len(text)} characters, the limit is {limit}", _PARAM)


class _Words:
    """Finds the words that a text begins with by bisection, so that their number hardly matters."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = sorted(words)
        self.max_chars = max(map(len, self._words), default=0)
        # Of each word: the words that it begins with, itself included, shortest first.
        self._chains: list[list[str]] = []
        for word in self._words:
            shorter = self._chains[-1] if self._chains else []
            self._chains.append([*filter(word.startswith, shorter), word])

    def beginning(self, text: str) -> list[str]:
        """The words that the text begins with, longest first."""
        index = bisect_right(self._words, text)
        if not index:
            return []
        # All of them begin the last word that is not after the text.
        chain = self._chains[index - 1]
        return chain[: bisect_left(chain, True, key=lambda word: not text.startswith(word))][::-1]

    def one_goes_on(self, text: str) -> bool:
        """Whether a longer word begins with the text."""
        index = bisect_right(self._words, text)
        return index < len(self._words) and self._words[index].startswith(text)


class PronunciationRule:
    """The longest word that matches counts. A word without capitals matches in any case, others as they are."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = entries
        self._in_any_case = _Words(word for word in entries if word == word.lower())
        self._as_written = _Words(word for word in entries if word != word.lower())
        self._max_chars = max(self._in_any_case.max_chars, self._as_written.max_chars)
        firsts = {word[0] for word in entries} | {word[0].upper()[:1] for word in entries if word == word.lower()}
        self.starts = f"[{''.join(map(re.escape, sorted(firsts)))}]"
        if all(len(word) > 1 for word in entries):
            seconds = sorted({word[1] for word in entries})
            self.starts += rf"(?=(?i:[{''.join(map(re.escape, seconds))}])|\Z)"

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        if at and _joined(text[at - 1], text[at]):
            return None
        window = text[at : at + self._max_chars]
        forms = (self._as_written, window), (self._in_any_case, _lowered(window))
        is_open = not ended and at + len(window) == len(text)  # the words may go on after the text
        if is_open and any(words.one_goes_on(form) for words, form in forms):
            raise NeedMoreText
        found = [word for words, form in forms for word in words.beginning(form)]
        for word in sorted(found, key=len, reverse=True) if len(found) > 1 else found:
            end = at + len(word)
            if end == len(text) and is_open and not (_is_wide(word[-1]) or _is_hangul(word[-1])):
                raise NeedMoreText
            if end == len(text) or _ends_word(word[-1], text[end]):
                return Match(end, self._entries[word], is_final=True)
        return None


def _lowered(text: str) -> str:
    """The text in lower case, of the same length."""
    if text.isascii():
        return text.lower()
    return "".join([lower if len(lower := char.lower()) == 1 else char for char in text])


def _ends_word(last: str, following: str) -> bool:
    """Korean particles are written at the end of a word and do not belong to it."""
    return _is_hangul(last) or not _joined(last, following)


@lru_cache(maxsize=8192)
def _joined(left: str, right: str) -> bool:
    """Whether both characters belong to one word. Chinese and Japanese have no spaces: any place there is a border."""
    return _in_word(left) and _in_word(right) and not (_is_wide(left) or _is_wide(right))


def _in_word(char: str) -> bool:
    return char.isalnum() or char in "_\u200d" or unicodedata.category(char)[0] == "M"


def _is_wide(char: str) -> bool:
    """Whether the character belongs to a script written without spaces (Korean uses spaces)."""
    return unicodedata.east_asian_width(char) in ("W", "F") and not _is_hangul(char)


def _is_hangul(char: str) -> bool:
    return "\uac00" <= char <= "\ud7a3"
