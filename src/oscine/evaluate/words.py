"""Texts become words (or characters, in scripts without spaces), and what was heard is laid beside what was wanted.

The standard library only: training/recognise.py imports this in an environment that has nothing else of ours.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["word", "character"]

_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
# Spellings of one and the same sound.
_SAME = {"cannot": "can not", "okay": "ok", "oclock": "o clock", "dr": "doctor", "mr": "mister", "mrs": "missus"}

# By name, as servers take them, and by code, as recognisers do.
LANGUAGES = {
    "chinese": "zh", "english": "en", "japanese": "ja", "korean": "ko", "german": "de", "french": "fr",
    "russian": "ru", "portuguese": "pt", "spanish": "es", "italian": "it",
}  # fmt: skip
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_SPACELESS = re.compile(f"[{_HAN}{_KANA}{_SOUTH_EAST_ASIAN}]")
_SCRIPTS = {
    "ja": re.compile(f"[{_KANA}]"),
    "zh": re.compile(f"[{_HAN}]"),
    "ko": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "ru": re.compile("[\u0400-\u052f]"),
    "en": re.compile("[A-Za-z]"),
}


def language_of(text: str, named: str | None = None) -> str | None:
    """The code of the language that was named, or of the one that the script suggests: Latin letters alone are taken
    for English. None: the recogniser shall find out, as for Latin words within another script."""
    if named and named.lower() != "auto":
        return LANGUAGES.get(named.lower(), named.lower())
    found = [code for code, letters in _SCRIPTS.items() if letters.search(text)]
    if found[:2] == ["ja", "zh"]:  # Japanese is written in both
        found.remove("zh")
    return found[0] if len(found) == 1 else None


def unit_of(text: str) -> Unit:
    return "character" if _SPACELESS.search(text) else "word"


def number_words(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + ("" if number % 10 == 0 else " " + _ONES[number % 10])
    if number < 1000:
        rest = number % 100
        return f"{_ONES[number // 100]} hundred" + ("" if rest == 0 else " " + number_words(rest))
    if 1100 <= number < 2000 or 2010 <= number < 2100:  # as years are said
        rest = number % 100
        after = "hundred" if rest == 0 else f"oh {_ONES[rest]}" if rest < 10 else number_words(rest)
        return f"{number_words(number // 100)} {after}"
    if number < 1_000_000:
        rest = number % 1000
        return f"{number_words(number // 1000)} thousand" + ("" if rest == 0 else " " + number_words(rest))
    return " ".join(_ONES[int(digit)] for digit in str(number))


def normalise(text: str, language: str | None = "en", unit: Unit = "word") -> list[str]:
    """What is said, however it was written: no case, no punctuation, in English no digits."""
    words = _english(text) if language == "en" else _any_language(text)
    return words if unit == "word" else list("".join(words))


def _english(text: str) -> list[str]:
    text = text.lower().replace("’", "'").replace("&", " and ")
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"\$(\d+)(?:\.00)?", r"\1 dollars", text).replace("%", " percent")
    text = re.sub(r"\b(\d+)(st|nd|rd|th)\b", r"\1", text)
    text = re.sub(r"(?<![\w.])-(?=\d)", "minus ", text)
    text = re.sub(r"(\d):00\b", r"\1", text)
    text = re.sub(r"\d+", lambda digits: f" {number_words(int(digits[0]))} ", text)
    text = re.sub(r"[^a-z0-9 ]", "", re.sub(r"[-/:.]", " ", text).replace("'", ""))
    return " ".join(_SAME.get(word, word) for word in text.split()).split()


def _any_language(text: str) -> list[str]:
    text = re.sub("['’]", "", unicodedata.normalize("NFKC", text).casefold())
    # Letters, the marks that belong to them, and numbers; all else parts words.
    return "".join(sign if unicodedata.category(sign)[0] in "LMN" else " " for sign in text).split()


Pair = tuple[str | None, str | None]  # wanted, heard; None: missing, added


@dataclass(frozen=True, slots=True)
class Alignment:
    """What was wanted beside what was heard, with the fewest words missing, added or exchanged."""

    pairs: tuple[Pair, ...]

    @property
    def wanted(self) -> int:
        return sum(wanted is not None for wanted, _ in self.pairs)

    @property
    def errors(self) -> int:
        return sum(wanted != heard for wanted, heard in self.pairs)

    @property
    def missing(self) -> int:
        return sum(heard is None for _, heard in self.pairs)

    @property
    def added(self) -> int:
        return sum(wanted is None for wanted, _ in self.pairs)

    @property
    def exchanged(self) -> int:
        return self.errors - self.missing - self.added

    @property
    def missing_ends(self) -> tuple[int, int]:
        """Wanted words at the start and at the end of which nothing was heard."""
        return _leading(self.pairs, 1), _leading(self.pairs[::-1], 1)

    @property
    def added_ends(self) -> tuple[int, int]:
        """Words heard before the first wanted one and after the last."""
        return _leading(self.pairs, 0), _leading(self.pairs[::-1], 0)

    @property
    def repeated(self) -> int:
        """Added words that say again what was said right before them, once or several times."""
        heard = [pair for pair in self.pairs if pair[1] is not None]
        return sum(end - begin for begin, end in _added_runs(heard) if _repeats(heard, begin, end))


def _leading(pairs: Sequence[Pair], side: int) -> int:
    return next((count for count, pair in enumerate(pairs) if pair[side] is not None), len(pairs))


def _added_runs(heard: Sequence[Pair]) -> Iterator[tuple[int, int]]:
    begin = 0
    for end in range(len(heard) + 1):
        if end == len(heard) or heard[end][0] is not None:
            if end > begin:
                yield begin, end
            begin = end + 1


def _repeats(heard: Sequence[Pair], begin: int, end: int) -> bool:
    """Whether the run goes on with a period that began before it: "the cat [the cat the cat] sat" has one of two."""
    return any(
        all(heard[at][1] == heard[at - period][1] for at in range(begin, end))
        for period in range(1, min(end - begin, begin) + 1)
    )


_MISSING, _ADDED, _BOTH = 0, 1, 2


def align(wanted: Sequence[str], heard: Sequence[str]) -> Alignment:
    """Of equally good alignments the one whose missing and added words stand latest: a sentence that was cut off lacks
    its end, and of a phrase said twice the second one is too much. Words that differ only by a space between them are
    equal."""
    if "".join(wanted) == "".join(heard):
        return Alignment(tuple((word, word) for word in wanted))
    ways = [bytearray([_ADDED]) * (len(heard) + 1)]  # the last step to each place
    row = list(range(len(heard) + 1))
    for i, word in enumerate(wanted, start=1):
        way = bytearray([_MISSING]) * (len(heard) + 1)
        before, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            both, best = before + (word != other), row[j] + 1
            if row[j - 1] + 1 < best:
                best, way[j] = row[j - 1] + 1, _ADDED
            if both < best:
                best, way[j] = both, _BOTH
            before, row[j] = row[j], best
        ways.append(way)
    return Alignment(tuple(_walk_back(ways, wanted, heard))[::-1])


def _walk_back(ways: Sequence[bytearray], wanted: Sequence[str], heard: Sequence[str]) -> Iterator[Pair]:
    i, j = len(wanted), len(heard)
    while i or j:
        way = ways[i][j]
        i, j = i - (way != _ADDED), j - (way != _MISSING)
        yield (None if way == _ADDED else wanted[i]), (None if way == _MISSING else heard[j])


def errors(wanted: Sequence[str], heard: Sequence[str]) -> int:
    return align(wanted, heard).errors
