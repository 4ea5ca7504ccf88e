"""Numbers in words, by the rules of Unicode CLDR (the library unicode-rbnf)."""

from __future__ import annotations

import importlib
from functools import cache, lru_cache, partial
from typing import Any, Literal

Gender = Literal["masculine", "feminine"]
MAX_DIGITS = 15  # longer numbers are read digit by digit
_CACHED_NUMBERS = 1024

_POINT = {
    "zh": "点", "en": " point ", "ja": "点", "ko": " 점 ", "de": " Komma ", "fr": " virgule ", "ru": " запятая ",
    "pt": " vírgula ", "es": " coma ", "it": " virgola ",
}  # fmt: skip
_MINUS = {
    "zh": "负", "en": "minus ", "ja": "マイナス", "ko": "마이너스 ", "de": "minus ", "fr": "moins ", "ru": "минус ",
    "pt": "menos ", "es": "menos ", "it": "meno ",
}  # fmt: skip
_DIGITS = {"zh": "零一二三四五六七八九", "ja": "零一二三四五六七八九", "ko": "영일이삼사오육칠팔구"}
# CLDR's names of the rules before a noun ("ein", "eine"); alone, a number follows "spellout-numbering" ("eins").
_BEFORE_NOUN = {"masculine": "spellout-cardinal-masculine", "feminine": "spellout-cardinal-feminine"}
_WITHOUT_GENDER = ("en", "zh", "ja", "ko")
_YEARS = {"en": range(1100, 2100), "de": range(1100, 2000)}  # "nineteen eighty-four", "neunzehnhundertvierundachtzig"


def _spell(engine: Any, number: int, ruleset: str) -> str:
    text: str = engine.format_number(number, ruleset_names=[ruleset]).text
    return text.replace("〇", "零")


class Speller:
    def __init__(self, code: str) -> None:
        self.code = code
        engine = import_rbnf().RbnfEngine.for_language(code)
        self.spell = lru_cache(maxsize=_CACHED_NUMBERS)(partial(_spell, engine))  # (number, ruleset) -> words

    def cardinal(self, number: int, gender: Gender | None = None) -> str:
        """`gender` is that of the noun that is counted, if there is one."""
        if len(str(number)) > MAX_DIGITS:
            return self.digits(str(number))
        if number == 0 and self.code == "ko":
            return "영"
        if gender is None or self.code in _WITHOUT_GENDER:
            return self.spell(number, "spellout-numbering")
        return self.spell(number, _BEFORE_NOUN[gender])

    def digits(self, digits: str) -> str:
        if self.code in _DIGITS:
            return "".join(_DIGITS[self.code][int(digit)] for digit in digits)
        return " ".join(self.cardinal(int(digit)) for digit in digits)

    def number(self, whole: str, fraction: str = "", *, negative: bool = False, gender: Gender | None = None) -> str:
        """Spells a number from its digits."""
        if not fraction and len(whole) > 1 and whole[0] == "0":
            words = self.digits(whole)
        elif fraction:
            words = f"{self.cardinal(int(whole))}{_POINT[self.code]}{self.digits(fraction)}"
        else:
            words = self.digits(whole) if len(whole) > MAX_DIGITS else self.cardinal(int(whole), gender)
        return _MINUS[self.code] + words if negative else words

    def year(self, year: int) -> str:
        if self.code in ("zh", "ja"):
            return self.digits(str(year)) if self.code == "zh" else self.cardinal(year)
        return self.spell(year, "spellout-numbering-year") if self.reads_as_year(year) else self.cardinal(year)

    def reads_as_year(self, number: int) -> bool:
        """Whether a number of four digits is read in pairs."""
        return number in _YEARS.get(self.code, ())


@cache
def speller(code: str) -> Speller:
    return Speller(code)


# --- Libraries with large tables: imported on first use.


def import_rbnf() -> Any:
    return importlib.import_module("unicode_rbnf")


def import_babel(module: str) -> Any:
    return importlib.import_module(f"babel.{module}")
