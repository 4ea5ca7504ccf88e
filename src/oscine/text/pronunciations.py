"""Pronunciation entries of a request: whole words and what is spoken instead of them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

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


_Trie = dict[str, Any]  # by character; "": the entry that ends here


class PronunciationRule:
    """The longest word that matches counts. A word without capitals matches in any case, others as they are."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._by_first: dict[str, list[tuple[str, str]]] = {}  # first character -> entries, longest first
        for word, spoken in sorted(entries.items(), key=lambda entry: -len(entry[0])):
            for first in {word[0], word[0].upper()[:1]} if word == word.lower() else {word[0]}:
                self._by_first.setdefault(first, []).append((word, spoken))
        self._as_written: _Trie = {}
        self._in_any_case: _Trie = {}
        for word, spoken in entries.items():
            node = self._in_any_case if word == word.lower() else self._as_written
            for char in word:
                node = node.setdefault(char, {})
            node[""] = word, spoken
        self.starts = f"[{''.join(map(re.escape, sorted(self._by_first)))}]"

    def _that_match(self, text: str, at: int) -> list[tuple[str, str]]:
        """Entries that the text at this place equals, longest first: it looks at each character, not at each entry."""
        found: list[tuple[str, str]] = []
        for trie, is_folded in ((self._as_written, False), (self._in_any_case, True)):
            node = trie
            for char in text[at : at + MAX_WORD_CHARS]:
                following = node.get(char.lower() if is_folded else char)
                if following is None:
                    break
                node = following
                if "" in node:
                    found.append(node[""])
        return sorted(found, key=lambda entry: -len(entry[0]))

    def match(self, text: str, at: int, *, ended: bool) -> Match | None:
        if at and _joined(text[at - 1], text[at]):
            return None
        entries = self._by_first[text[at]]
        if ended or len(text) - at > MAX_WORD_CHARS:  # no entry can go on after the text
            entries = self._that_match(text, at)
        for word, spoken in entries:
            given = text[at : at + len(word)]
            if word == word.lower():
                given = given.lower()
            if not ended and word.startswith(given) and _may_go_on(text, at, word):
                raise NeedMoreText
            end = at + len(word)
            if given == word and (end == len(text) or _ends_word(word[-1], text[end])):
                return Match(end, spoken, is_final=True)
        return None


def _may_go_on(text: str, at: int, word: str) -> bool:
    """Whether the next character of the text decides if the word is there."""
    length = len(text) - at
    return length < len(word) or (length == len(word) and not (_is_wide(word[-1]) or _is_hangul(word[-1])))


def _ends_word(last: str, following: str) -> bool:
    """Korean particles are written at the end of a word and do not belong to it."""
    return _is_hangul(last) or not _joined(last, following)


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
