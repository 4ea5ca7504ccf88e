"""Gaps for texts as people write them: prices, dates, codes, addresses, names. texts.py fills templates with them, and
`spoken` writes the result out as the server does (text level "spoken"), since that is what the voice gets to read.

Held-out texts are those of the evaluation. A sentence is too close to one if both have nearly the same words, where
numbers and letters do not count: "It costs $12." is "It costs $7." again.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import paths

from oscine.text.english.lexicon import LETTERS, SPELLED
from oscine.text.english.numbers import ordinal
from oscine.text.options import ENGLISH, TextOptions
from oscine.text.preparation import prepare_text
from oscine.text.spoken_text import SpokenText

WRITTEN_SET = paths.ROOT / "src/oscine_eval/texts/written.tsv"
_SPOKEN = TextOptions(text_level="spoken")
_ALIKE = 0.7  # share of common words of two texts that are nearly the same


def spoken(text: str) -> str:
    """What the model reads for this text; pauses separate sentences anyway."""
    parts = prepare_text(text, _SPOKEN, ENGLISH)
    return " ".join(part.spoken.strip() for part in parts if isinstance(part, SpokenText)).strip()


class WrittenGaps:
    """Values for gaps such as {price}; `words` are the sections of words.txt."""

    def __init__(self, draw: random.Random, words: dict[str, list[str]]) -> None:
        self._draw, self._words = draw, words
        self.gaps: dict[str, Callable[[], str]] = {
            "price": self._price, "decimal": self._decimal, "big": self._big, "negative": self._negative,
            "nth": self._nth, "calendar": self._calendar, "clock": self._clock, "score": self._score,
            "fraction": self._fraction, "measure": self._measure, "temperature": self._temperature,
            "percent": self._percent, "phone": self._phone, "code": self._code, "letters": self._letters,
            "acronym": self._acronym, "letter": self._letter, "email": self._email, "url": self._url,
            "file": self._file, "path": self._path, "version": self._version, "initials": self._initials,
            "digits": self._digits,
        }  # fmt: skip

    def _choose(self, *forms: Callable[[], str]) -> str:
        return self._draw.choice(forms)()

    def _int(self, most: int, least: int = 1) -> int:
        """Small numbers are as frequent as large ones."""
        limit = self._draw.choice([limit for limit in (10, 100, 1000, 10**4, 10**5) if limit < most] + [most])
        return self._draw.randint(least, max(least, limit))

    def _name(self) -> str:
        return self._draw.choice(self._words["name"] + self._words["surname"]).lower()

    def _noun(self) -> str:
        return self._word("noun").partition("/")[0]

    def _word(self, section: str) -> str:
        return self._draw.choice(self._words[section])

    def _price(self) -> str:
        sign, whole, cents = self._draw.choice("$$$$€€££¥"), self._int(20000), self._draw.randint(1, 99)
        return self._choose(
            lambda: f"${self._int(1000)}", lambda: f"{sign}{whole:,}", lambda: f"${whole:,}.{cents:02d}",
            lambda: f"{sign}{whole}", lambda: f"€{whole}.{cents:02d}", lambda: f"{whole} €", lambda: f"$0.{cents:02d}",
            lambda: f"{sign}{whole % 100 / 10} million", lambda: f"${whole % 60 + 1}bn",
            lambda: f"${whole}-${whole + 10}", lambda: f"${whole % 90 + 1}/month", lambda: f"{whole} USD",
            lambda: f"£{whole % 500}",
        )  # fmt: skip

    def _decimal(self) -> str:
        return f"{self._int(1000, 0)}.{self._draw.randint(1, 999)}"

    def _big(self) -> str:
        return self._choose(lambda: f"{self._int(10**9, 1000):,}", lambda: f"{self._int(99)}k", self._round)

    def _round(self) -> str:
        return f"{self._draw.randint(1, 99) * 10 ** self._draw.randint(2, 9):,}"

    def _negative(self) -> str:
        return f"-{self._choose(self._decimal, lambda: str(self._int(100)))}"

    def _nth(self) -> str:
        number = self._int(120)
        last = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
        return self._choose(lambda: f"{number}{last}", lambda: ordinal(number))

    def _calendar(self) -> str:
        month, day, year = self._word("month"), self._draw.randint(1, 28), self._draw.randint(1700, 2035)
        number = self._words["month"].index(month) + 1
        return self._choose(
            lambda: f"{month} {day}", lambda: f"{month} {day}, {year}", lambda: f"{number}/{day}/{year}",
            lambda: f"{year}-{number:02d}-{day:02d}", lambda: f"{day} {month} {year}",
            lambda: f"{self._word('weekday')}, {month[:3]}. {day}", lambda: f"{month[:3]}. {day}, {year}",
            lambda: f"{day} {month}", lambda: f"the {year // 10 * 10}s", lambda: f"{month} {year}",
        )  # fmt: skip

    def _clock(self) -> str:
        hour, minute, half = self._draw.randint(1, 12), self._draw.randint(0, 59), self._draw.choice(("am", "pm"))
        return self._choose(
            lambda: f"{hour}:{minute:02d} {half}", lambda: f"{hour}{half}", lambda: f"{hour}:{minute:02d}",
            lambda: f"{hour + 11}:{minute:02d}", lambda: f"{hour} {half[0]}.{half[1]}.",
            lambda: f"{hour}:00-{hour % 12 + 1}:30",
        )  # fmt: skip

    def _score(self) -> str:
        return f"{self._int(120, 0)}{self._draw.choice('-:')}{self._int(120, 0)}"

    def _fraction(self) -> str:
        below = self._draw.randint(2, 12)
        above = self._draw.randint(1, below - 1)
        return self._choose(
            lambda: f"{above}/{below}", lambda: f"{self._int(9)} {above}/{below}", lambda: self._draw.choice("½¼¾⅓⅔"),
            lambda: f"{self._int(20)}½",
        )  # fmt: skip

    def _measure(self) -> str:
        value = self._choose(lambda: str(self._int(1000)), self._decimal, lambda: str(self._int(99)))
        return f"{value} {self._word('symbol')}".replace(" °", "°")

    def _temperature(self) -> str:
        return f"{self._draw.choice(('', '', '-'))}{self._int(100, 0)}{self._draw.choice(('°C', ' °C', '°F', '°'))}"

    def _percent(self) -> str:
        value = self._draw.randint(1, 100)
        return self._choose(lambda: f"{value}%", lambda: f"{value / 8:.1f}%", lambda: f"{value}-{value + 5}%")

    def _phone(self) -> str:
        area, left, right = (f"{self._draw.randint(0, limit):0{len(str(limit))}d}" for limit in (999, 999, 9999))
        return self._draw.choice(
            (f"{area}-{left}-{right}", f"({area}) {left}-{right}", f"1-{area}-{left}-{right}", f"{left}-{right}",
             f"+{self._draw.randint(1, 99)} {area} {right}{left}")
        )  # fmt: skip

    def _letter(self) -> str:
        return self._draw.choice(string.ascii_uppercase)

    def _letters(self) -> str:
        return "".join(self._letter() for _ in range(self._draw.randint(2, 5)))

    def _digits(self) -> str:
        return "".join(self._draw.choices(string.digits, k=self._draw.randint(3, 6)))

    def _code(self) -> str:
        mixed = lambda size: "".join(self._draw.choices(string.ascii_uppercase + string.digits, k=size))  # noqa: E731
        return self._choose(
            lambda: f"{mixed(3)}-{mixed(3)}", lambda: f"{self._letter()}{self._int(99)}", lambda: mixed(4),
            lambda: f"{self._letters()}-{self._int(999)}", lambda: f"{self._letter()}{self._int(9)}{self._letter()}",
        )  # fmt: skip

    def _acronym(self) -> str:
        ending = self._draw.choice(("", "", "", "", "s"))
        consonants = "".join(self._draw.choices("BCDFGHJKLMNPQRSTVWXZ", k=self._draw.randint(3, 4)))
        return self._draw.choice((self._draw.choice(sorted(SPELLED)), consonants)) + ending

    def _version(self) -> str:
        return f"{self._draw.choice(('', 'v'))}{self._int(12)}.{self._int(20)}{self._draw.choice(('', '.0', '.2'))}"

    def _site(self) -> str:
        return f"{self._choose(self._name, self._noun)}.{self._word('domain')}".replace(" ", "")

    def _email(self) -> str:
        who = self._draw.choice(
            (self._name(), f"{self._name()}.{self._name()}", f"{self._name()}_{self._int(99)}", self._noun(),
             f"{self._letter().lower()}.{self._name()}")
        )  # fmt: skip
        return f"{who}@{self._site()}".replace(" ", "")

    def _url(self) -> str:
        head = self._draw.choice(("", "www.", "https://", "https://www.", f"{self._noun()}."))
        return f"{head}{self._site()}{self._draw.choice(('', '', f'/{self._noun()}', f'/{self._letters().lower()}'))}"

    def _file(self) -> str:
        stem = self._draw.choice((self._noun(), f"{self._noun()}_{self._int(99)}", f"{self._noun()}-{self._noun()}"))
        return f"{stem}.{self._word('ending')}".replace(" ", "")

    def _path(self) -> str:
        return f"/{self._noun()}/{self._noun()}/{self._file()}".replace(" ", "")

    def _initials(self) -> str:
        return self._draw.choice(("{}. {}.", "{}.{}.", "{}."))[:8].format(self._letter(), self._letter())


# --- held-out texts -------------------------------------------------------------------------------------------------


class HeldOut:
    """Knows which sentences are too close to the texts of an evaluation. One word alone is never too close: words are
    what the voice learns."""

    def __init__(self, texts: Iterable[str]) -> None:
        sets = {some for some in map(kinds, texts) if len(some) > 1}
        seen = Counter(word for some in sets for word in some)
        self._by_word: dict[str, list[frozenset[str]]] = {}
        for some in sets:
            # Texts that share enough words with this one share one of its rarest.
            rarest = sorted(some, key=lambda word: (seen[word], word))[: len(some) - int(_ALIKE * len(some)) + 1]
            for word in rarest:
                self._by_word.setdefault(word, []).append(some)

    def has(self, text: str) -> bool:
        words = kinds(text)
        near = (some for word in words for some in self._by_word.get(word, ()))
        return any(len(words & some) >= _ALIKE * len(words | some) for some in near)


def heldout_texts(texts: Path) -> list[str]:
    """The texts of the evaluation, also as they are spoken."""
    pairs = [line.split("\t")[1:] for line in WRITTEN_SET.read_text(encoding="utf-8").splitlines()]
    lines = (texts / "heldout.txt").read_text(encoding="utf-8").splitlines()
    return [form for pair in pairs for form in (pair[1], spoken(pair[0]))] + lines


_NUMBER = re.compile(
    r"\d+|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand|million|point"
)
# Letters, and those of their names that are no frequent words.
_LETTER_WORDS = (
    set("bcdefghjklmnopqrstuvwxyz") | {"double"} | set(LETTERS.values()) - {"are", "you", "why", "see", "oh"}
)


def kinds(text: str) -> frozenset[str]:
    """The words of a text, with one word for all numbers and letters."""
    words = re.findall(r"[a-z0-9]+", text.lower().replace("'", ""))
    return frozenset("#" if _NUMBER.fullmatch(word) or word in _LETTER_WORDS else word for word in words)
