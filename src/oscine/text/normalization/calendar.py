"""Dates and times of day in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from oscine.text.normalization.speller import Speller, import_babel

# German dates agree with the word before them: "am sechzehnten Mai", "der sechzehnte Mai", "sechzehnter Mai".
_GERMAN_DATIVE = re.compile(r"\b(am|dem|den|vom|zum|beim|ab|bis|seit|im)\s+$", re.IGNORECASE)
_GERMAN_ARTICLE = re.compile(r"\b(der|die|das)\s+$", re.IGNORECASE)


class Calendar:
    def __init__(self, spell: Speller) -> None:
        self._spell, self._code = spell, spell.code

    def date(self, day: int, month: int, year: int | None, before: str) -> str:
        """`before`: the text before the date."""
        spell, code = self._spell, self._code
        if code in ("zh", "ja", "ko"):
            parts = [] if year is None else [spell.year(year) + {"zh": "年", "ja": "年", "ko": "년"}[code]]
            parts += [self._month(month), spell.cardinal(day) + {"zh": "日", "ja": "日", "ko": "일"}[code]]
            return (" " if code == "ko" else "").join(parts)
        name, of = self._month(month), " de " if code in ("es", "pt") else " "
        if code == "en":
            return f"{name} {self.day(day, before)}" + ("" if year is None else f", {spell.year(year)}")
        spoken_year = "" if year is None else of + self.year(year)
        return f"{self.day(day, before)}{of}{name}{spoken_year}"

    def day(self, day: int, before: str) -> str:
        """A day before or after its month's name."""
        spell = self._spell
        match self._code:
            case "en":
                return spell.spell(day, "spellout-ordinal")
            case "de":
                ending = "" if _GERMAN_ARTICLE.search(before) else "-n" if _GERMAN_DATIVE.search(before) else "-r"
                return spell.spell(day, f"spellout-ordinal{ending}")
            case "ru":
                return spell.spell(day, "spellout-ordinal-neuter-genitive")
            case "fr" | "it" | "es" | "pt" if day == 1:
                return spell.spell(1, "spellout-ordinal-masculine")
        return spell.cardinal(day)

    def has_article(self, before: str) -> bool:
        """Whether a German ordinal may follow."""
        return bool(_GERMAN_ARTICLE.search(before) or _GERMAN_DATIVE.search(before))

    def year(self, year: int) -> str:
        """A year after its month's name."""
        if self._code == "ru":
            return self.ordinal_year(year, "-genitive") + " года"
        return self._spell.year(year)

    def ordinal_year(self, year: int, case: str) -> str:
        """A year as Russian has it: "the two thousand twenty-sixth"."""
        words = self._spell.spell(year, f"spellout-ordinal-masculine{case}")
        return words.replace("одна тысяча", "тысяча", 1)

    def time(self, hour: int, minute: int) -> str:
        spell, words = self._spell, self._spell.cardinal
        match self._code:
            case "en":
                if minute == 0:
                    return f"{words(hour)} o'clock" if 1 <= hour <= 12 else f"{words(hour)} hundred"
                return f"{words(hour)} {'oh ' if minute < 10 else ''}{words(minute)}"
            case "de":
                return f"{words(hour, 'masculine')} Uhr" + (f" {words(minute)}" if minute else "")
            case "fr":
                hours = f"{words(hour, 'feminine')} heure{'s' if hour > 1 else ''}"
                return hours + (f" {words(minute, 'feminine')}" if minute else "")
            case "es":
                return words(hour, "feminine") + (f" y {words(minute)}" if minute else " en punto")
            case "it":
                return words(hour) + (f" e {words(minute)}" if minute else "")
            case "pt":
                hours = f"{words(hour, 'feminine')} hora{'s' if hour != 1 else ''}"
                return f"{words(hour, 'feminine')} e {words(minute)}" if minute else hours
            case "ru":
                return f"{words(hour)} {'ноль ' if minute < 10 else ''}{words(minute) if minute else 'ноль'}"
            case "zh":
                hours = "两" if hour == 2 else words(hour)
                return f"{hours}点" + (f"{'零' if minute < 10 else ''}{words(minute)}分" if minute else "")
            case "ja":
                return f"{words(hour)}時" + (f"{words(minute)}分" if minute else "")
        native = spell.spell(hour, "spellout-cardinal-native-attributive") if 1 <= hour <= 12 else words(hour)
        return f"{native} 시" + (f" {words(minute)} 분" if minute else "")

    def _month(self, month: int) -> str:
        if self._code in ("zh", "ja"):
            return f"{self._spell.cardinal(month)}月"
        if self._code == "ko":
            return {6: "유", 10: "시"}.get(month, self._spell.cardinal(month)) + "월"  # said without a final consonant
        return month_names(self._code)[month - 1]


@cache
def month_names(code: str) -> tuple[str, ...]:
    """Names of months as they stand in a date, from January on."""
    names = import_babel("core").Locale.parse(code).months["format"]["wide"]
    return tuple(names[number] for number in range(1, 13))


@cache
def months_by_name(code: str) -> dict[str, int]:
    """Names and abbreviations in lower case, without full stops."""
    return dict(_months(code))


def _months(code: str) -> Iterator[tuple[str, int]]:
    months = import_babel("core").Locale.parse(code).months["format"]
    for width in ("wide", "abbreviated"):
        for number, name in months[width].items():
            yield name.lower().rstrip("."), number
