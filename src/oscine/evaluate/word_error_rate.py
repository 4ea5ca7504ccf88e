"""Texts become words (or characters, in scripts without spaces), and what was heard is laid beside what was wanted.

The standard library and numbers.py only: training/recognise.py imports this in an environment that lacks the libraries
that the rest of ours needs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from oscine.evaluate.numbers import say_alike, spell_out

Unit = Literal["word", "character"]

# Spellings of one and the same sound.
_SAME = {"cannot": "can not", "okay": "ok", "oclock": "o clock", "dr": "doctor", "mr": "mister", "mrs": "missus"}

# By name, as servers take them, and by code, as recognisers do.
LANGUAGES = {
    "chinese": "zh", "english": "en", "japanese": "ja", "korean": "ko", "german": "de", "french": "fr",
    "russian": "ru", "portuguese": "pt", "spanish": "es", "italian": "it",
}  # fmt: skip
_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KANA = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_SOUTH_EAST_ASIAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_SPACELESS = re.compile(f"[{_HAN}{_KANA}{_SOUTH_EAST_ASIAN}]")
_SCRIPTS = {
    "ja": re.compile(f"[{_KANA}]"),
    "zh": re.compile(f"[{_HAN}]"),
    "ko": re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]"),
    "ru": re.compile("[\u0400-\u052f]"),
    "en": re.compile("[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\uff21-\uff3a\uff41-\uff5a]"),
}

_PARTING = re.compile(r"</?[A-Za-z][^<>]*>|(?<=\d)['’](?=\d)")  # tags; feet and inches
# Apostrophes and what nobody sees (joiners, soft hyphens, marks of direction and of style) part no words.
_WITHIN_WORDS = str.maketrans(dict.fromkeys("'’‘ʼ＇`´\u00ad\u200c\u200d\u200e\u200f\u2060\u20e3\ufe0e\ufe0f\ufeff™"))
_ACCENTS = re.compile("[\u0300-\u036f]")
_PLAIN = str.maketrans({"æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "\u2212": "-"})
_SIGNS = str.maketrans({"&": " and ", "%": " percent ", "°": " degrees ", "€": " euros "})
_TEMPERATURES = {"c": " celsius ", "f": " fahrenheit "}


def language_of(text: str, named: str | None = None) -> str | None:
    """The code of the language that was named, or of the one that the script suggests: Latin letters alone are taken
    for English, as is a text without any letters ("1984."). None: the recogniser shall find out, as for Latin words
    within another script."""
    if named and named.lower() != "auto":
        return LANGUAGES.get(named.lower(), named.lower())
    found = [code for code, letters in _SCRIPTS.items() if letters.search(text)]
    if found[:2] == ["ja", "zh"]:  # Japanese is written in both
        found.remove("zh")
    if not found and not any(sign.isalpha() for sign in text):
        return "en"
    return found[0] if len(found) == 1 else None


def unit_of(text: str) -> Unit:
    return "character" if _SPACELESS.search(text) else "word"


def normalise(text: str, language: str | None = "en", unit: Unit = "word") -> list[str]:
    """What is said, however it was written: no case, no punctuation; in English no digits and no accents either, and
    numbers as numbers.py says them."""
    text = _PARTING.sub(" ", text).translate(_WITHIN_WORDS)
    words = _english(text) if language == "en" else _any_language(text)
    return words if unit == "word" else list("".join(words))


def _english(text: str) -> list[str]:
    # 10² is not 102.
    text = "".join(f" {sign} " if unicodedata.category(sign) == "No" else sign for sign in text)
    text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold()).translate(_PLAIN)
    text = re.sub(r"(?<=°)\s?([cf])\b", lambda scale: _TEMPERATURES[scale[1]], text)
    words = _part(unicodedata.normalize("NFC", spell_out(text).translate(_SIGNS)))
    return say_alike(" ".join(_SAME.get(word, word) for word in words).split())


def _any_language(text: str) -> list[str]:
    return _part(unicodedata.normalize("NFKC", text).casefold().replace("〇", "零"))


def _part(text: str) -> list[str]:
    """Letters, the marks that belong to them, and numbers; all else parts words."""
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
    """Whether the run goes on with a period that began before it: "the cat [the cat the cat] sat" has one of two words.
    By letters, as "[icecream]" repeats "ice cream"."""
    run, period = "".join(word or "" for _, word in heard[begin:end]), ""
    for _, word in reversed(heard[:begin]):
        period = (word or "") + period
        if len(period) > len(run):
            break
        if (period * (len(run) // len(period) + 1)).startswith(run):
            return True
    return False


_MISSING, _ADDED, _BOTH, _JOINED = 0, 1, 2, 3
_MAX_JOINED = 4  # words on a side; more of them are hardly one word that was written apart

Place = tuple[int, int]  # so many wanted words and so many heard ones lie before it


def align(wanted: Sequence[str], heard: Sequence[str]) -> Alignment:
    """Of equally good alignments the one whose missing and added words stand latest: a sentence that was cut off lacks
    its end, and of a phrase said twice the second one is too much. Words that differ only by a space between them are
    equal, and stand in the pairs as they were wanted."""
    if "".join(wanted) == "".join(heard):
        return Alignment(tuple((word, word) for word in wanted))
    joins = _joins(wanted, heard)
    ways = [bytearray([_ADDED]) * (len(heard) + 1)]  # the last step to each place
    rows = [list(range(len(heard) + 1))]  # errors up to each place; as many as a join looks back
    for i, word in enumerate(wanted, start=1):
        way = bytearray([_MISSING]) * (len(heard) + 1)
        above, row = rows[-1], [i]
        for j, other in enumerate(heard, start=1):
            both, best = above[j - 1] + (word != other), above[j] + 1
            if row[-1] + 1 < best:
                best, way[j] = row[-1] + 1, _ADDED
            if both < best:
                best, way[j] = both, _BOTH
            if (i, j) in joins:
                begin_i, begin_j = joins[i, j]
                joined = rows[begin_i - i][begin_j]  # a join's first row is never this one
                if joined < best:
                    best, way[j] = joined, _JOINED
            row.append(best)
        ways.append(way)
        rows = [*rows[1 - _MAX_JOINED :], row]
    return Alignment(tuple(_walk_back(ways, joins, wanted, heard))[::-1])


def _joins(wanted: Sequence[str], heard: Sequence[str]) -> dict[Place, Place]:
    """Where words that differ only by the spaces between them end, and where they begin. At most one begins or ends at
    a place, since none is made of two shorter ones."""
    joins = {}
    for i, word in enumerate(wanted):
        for j, other in enumerate(heard):
            if word != other and (word.startswith(other) or other.startswith(word)):
                end = _join_end(wanted[i : i + _MAX_JOINED], heard[j : j + _MAX_JOINED])
                if end is not None:
                    joins[i + end[0], j + end[1]] = i, j
    return joins


def _join_end(wanted: Sequence[str], heard: Sequence[str]) -> Place | None:
    i, j, left, right = 1, 1, wanted[0], heard[0]
    while left != right:
        if i < len(wanted) and right.startswith(left):
            left, i = left + wanted[i], i + 1
        elif j < len(heard) and left.startswith(right):
            right, j = right + heard[j], j + 1
        else:
            return None
    return i, j


def _walk_back(
    ways: Sequence[bytearray], joins: dict[Place, Place], wanted: Sequence[str], heard: Sequence[str]
) -> Iterator[Pair]:
    i, j = len(wanted), len(heard)
    while i or j:
        way = ways[i][j]
        if way == _JOINED:
            end, (i, j) = i, joins[i, j]
            yield from ((word, word) for word in reversed(wanted[i:end]))
            continue
        i, j = i - (way != _ADDED), j - (way != _MISSING)
        yield (None if way == _ADDED else wanted[i]), (None if way == _MISSING else heard[j])


def errors(wanted: Sequence[str], heard: Sequence[str]) -> int:
    return align(wanted, heard).errors
