"""The rule that replaces numbers, dates, times, quantities and ordinals by words while a text is scanned."""

from __future__ import annotations

import re
from functools import cache

from oscine.text.normalization import language as languages
from oscine.text.normalization.calendar import months_by_name
from oscine.text.normalization.number_words import LETTER, WIDE, number_words
from oscine.text.normalization.quantities import CURRENCIES, SYMBOLS
from oscine.text.scanner import CONTEXT_CHARS, Match, NeedMoreText

_CURRENCY_SIGNS = "".join(sorted({char for symbol in SYMBOLS for char in symbol if not char.isalpha()}))
_LATIN = ("en", "de", "fr", "es", "pt", "it")
_LETTERS = re.compile(LETTER)
_NEAR = 12  # characters from a number to words that may change the guess of its language
_MAX_WORD_CHARS = 12  # longer than the name of a month


def _window(words: int) -> re.Pattern[str]:
    """Matches exactly so many words, possessively. A character of a wide script counts as one."""
    return re.compile(rf"(?:\s*+(?:[{WIDE}]|[^\s{WIDE}]{{1,40}}+)){{{words}}}+")


_BEFORE_NUMBER = re.compile(rf"[{_CURRENCY_SIGNS}]?\.?\s{{0,3}}(?:\d|\Z)")
_WINDOW = _window(6)  # a match depends on the text up to here
_GUESS_WINDOW = _window(12)  # and the guess of its language up to here


def check_language(name: str) -> None:
    """Raises RequestError if the language has no rules. Loads the tables of the language, or
    of all languages that may be guessed, which takes half a second."""
    code = languages.code_of(name)
    for one in [code] if code else languages.CODES.values():
        number_words(one)


class NormalizationRule:
    # A number that is no part of a longer one or of a word such as "H200"; a currency's sign; a short word before a
    # number.
    starts = (
        rf"(?<![^\W\d_{WIDE}])(?<!\d)(?<!\d[.,:/])(?:\d|[-−](?=[\d{_CURRENCY_SIGNS}]|$))"
        rf"|[{_CURRENCY_SIGNS}](?=\s?(?:\d|\Z))|(?<!\w){LETTER}"
        rf"(?={LETTER}{{0,{_MAX_WORD_CHARS - 1}}}{_BEFORE_NUMBER.pattern})"
    )

    def __init__(self, name: str) -> None:
        """The language is checked."""
        self._code = languages.code_of(name)
        self._guessed: str | None = None  # kept until words show another language

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        char = text[at]
        if char.isalpha() and not self._may_begin(text, at, ended=ended):
            return None
        if char.isnumeric() and not char.isdecimal():
            return None  # a fraction or a letter-like number
        window = _WINDOW.match(text, at)
        full_window = window if self._code else _GUESS_WINDOW.match(text, at)
        if not ended and (full_window is None or full_window.end() == len(text)):
            raise NeedMoreText
        before = text[max(0, at - CONTEXT_CHARS) : at]
        if self._code is None and (self._guessed is None or _LETTERS.search(text, max(0, at - _NEAR), at + _NEAR)):
            context = before + text[at : full_window.end() if full_window else len(text)]
            self._guessed = languages.guess(context) or self._guessed or "en"
        rest = text[at : window.end() if window else len(text)]
        found = number_words(self._code or self._guessed or "en").match(rest, before)
        return None if found is None else Match(at + found[0], found[1])

    def _may_begin(self, text: str, at: int, *, ended: bool) -> bool:
        """Whether the word is a month or a currency, or may become one."""
        codes = (self._code,) if self._code else _LATIN
        end = at
        while end < len(text) and text[end].isalpha() and end - at < _MAX_WORD_CHARS:
            end += 1
        word = text[at:end].lower()
        if end == len(text) and not ended:
            return any(name.startswith(word) for code in codes for name in _first_words(code))
        return bool(_BEFORE_NUMBER.match(text, end)) and any(word in _first_words(code) for code in codes)


@cache
def _first_words(code: str) -> frozenset[str]:
    """The words that may stand before a number and belong to it."""
    currencies = (*CURRENCIES, *(symbol.rstrip(_CURRENCY_SIGNS) for symbol in SYMBOLS if symbol[0].isalpha()))
    months = months_by_name(code) if code == "en" else ()  # in the other languages the day comes first
    return frozenset((*months, *(currency.lower() for currency in currencies)))
