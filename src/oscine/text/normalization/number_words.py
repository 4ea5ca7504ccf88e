"""Reads what a text begins with as a date, time, amount, quantity, ordinal, range or number, and writes it in words.

What is not understood, such as "1.2.3" or "555-0100", stays as it is.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from oscine.text.normalization.calendar import Calendar, months_by_name
from oscine.text.normalization.quantities import CURRENCIES, SYMBOLS, UNITS, Number, QuantitySpeller
from oscine.text.normalization.speller import Gender, speller

WIDE = r"\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\uff00-\uffef"  # Chinese, Japanese and Korean
LETTER = r"[^\W\d_]"
Found = tuple[int, str]  # how many characters are replaced, and by what

_SPACE = r"[ \u00a0\u202f]?"
_END = rf"(?![^\W_{WIDE}])"  # no letter or digit follows; a wide one may
_SYMBOL = "|".join(sorted(map(re.escape, SYMBOLS), key=len, reverse=True))
_CURRENCY = rf"(?P<currency>{_SYMBOL}|(?:{'|'.join(CURRENCIES)})\b)"
_UNIT = re.compile(rf"{_SPACE}({'|'.join(sorted(map(re.escape, UNITS), key=len, reverse=True))}){_END}")

_YEAR_FIRST = re.compile(rf"(\d{{4}})(?P<mark>[-/.])(\d{{1,2}})(?P=mark)(\d{{1,2}})(?![\d-]){_END}")
_YEAR_LAST = re.compile(rf"(\d{{1,2}})(?P<mark>[/.])(\d{{1,2}})(?P=mark)(\d{{4}}){_END}")
_YEAR = r"(?P<year>\d{4})\b(?![.,]?\d)"
_DAY_MONTH = re.compile(
    rf"(?P<day>\d{{1,2}})(?:\.|st|nd|rd|th|er|º|°)?\s+(?P<of>de\s+|of\s+)?(?P<month>{LETTER}+)\b\.?"
    rf"(?:(?:\s+de|,)?\s+{_YEAR}(?P<tail>\s+года|\s+г\.)?)?"
)
_MONTH_DAY = re.compile(
    rf"(?P<month>[A-Z][a-z]+)\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?![.,:/]?\d)(?:,?\s+{_YEAR})?"
)
_RUSSIAN_YEAR = re.compile(r"(\d{4})\s+(года|году|год)\b")
_RUSSIAN_CASES = {"года": "-genitive", "году": "-locative", "год": ""}
_TIME = re.compile(rf"([01]?\d|2[0-3]):([0-5]\d)(?![:.,]?\d){_END}")
_TIMES = {  # beside 14:30
    "fr": re.compile(rf"([01]?\d|2[0-3])\s?h\s?([0-5]\d){_END}"),
    "pt": re.compile(rf"([01]?\d|2[0-3])\s?h\s?([0-5]\d){_END}"),
    "de": re.compile(r"([01]?\d|2[0-3])\.([0-5]\d)(?=\s?Uhr\b)"),
}
_HALF_OF_DAY = re.compile(r"\s?[ap]\.?m\b", re.IGNORECASE)
_HOUR_MARK = re.compile(r"\s?Uhr\b")

_ORDINALS = {
    "en": re.compile(rf"(\d{{1,6}})(?:st|nd|rd|th){_END}"),
    "fr": re.compile(rf"(\d{{1,6}})(?:er|(re|ère)|e|ème|eme){_END}"),
    "es": re.compile(r"(\d{1,6})\.?(?:º|(ª))"),
    "pt": re.compile(r"(\d{1,6})\.?(?:º|(ª))"),
    "it": re.compile(r"(\d{1,6})\.?(?:º|(ª))"),
}
_GERMAN_ORDINAL = re.compile(r"(\d{1,3})\.(?=\s[A-ZÄÖÜ])")
_DECADE = re.compile(rf"(\d\d|\d{{4}})(?<=0)s{_END}")
_PHONE = re.compile(r"\d{3}\)?[ -]\d{3}-\d{4}(?!\d)")
_PHONE_AFTER_PLUS = re.compile(r"\d{1,3}(?:[ /-]?\(?\d{2,}\)?)+")
_RANGE = re.compile(r"(\d{1,4})\s?[-–~～]\s?(?=(\d{1,4})(?![-–.,:/]?\d))")
_TO = {
    "zh": "到", "en": " to ", "ja": "から", "ko": "에서 ", "de": " bis ", "fr": " à ", "ru": " – ", "pt": " a ",
    "es": " a ", "it": " a ",
}  # fmt: skip
_MAGNITUDE = re.compile(r"\s(thousand|million|billion|trillion)\b")
_SHORT_WORD = re.compile(r"(?<!\w)\w{2,5}\Z")
_GLUED = re.compile(rf"[^\W_{WIDE}]")
_CONTINUES = re.compile(r"[.,:/\-–]?\d")
_UNREAD = re.compile(r"[-−]?\d[\d.,:/\-–]*\w*")

# Nouns that change the form of a number before them.
_KOREAN_COUNTER = re.compile(r"\s?(?:개|명|시간?|살|마리|번|잔|권|대|병)")
_CHINESE_MEASURE = re.compile(r"[个只条位本张件点天年次公小米]")
_NOUNS: dict[str, dict[Gender, re.Pattern[str]]] = {
    "es": {"feminine": re.compile(r"\s\w+as?\b"), "masculine": re.compile(r"\s\w+(?:o|os|es)\b")},
    "pt": {"feminine": re.compile(r"\s\w+as?\b"), "masculine": re.compile(r"\s\w+os?\b")},
    "it": {"feminine": re.compile(r"\s\w+a\b"), "masculine": re.compile(r"\s\w+o\b")},
    "de": {"masculine": re.compile(rf"\s{LETTER}")},
}


@cache
def number_words(code: str) -> NumberWords:
    return NumberWords(code)


class NumberWords:
    """The words of one language."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._spell = speller(code)
        self._calendar, self._quantities = Calendar(self._spell), QuantitySpeller(self._spell)
        self._months = {} if code in ("zh", "ja", "ko") else months_by_name(code)
        number = _number_pattern(code)
        self._number = re.compile(rf"(?P<sign>[-−]?){number}")
        self._currency_first = re.compile(rf"(?P<sign>[-−]?){_CURRENCY}{_SPACE}{number}{_END}")
        self._currency_last = re.compile(rf"(?P<sign>[-−]?){number}{_SPACE}{_CURRENCY}")
        self._cached_match = lru_cache(maxsize=1024)(self._match)

    def match(self, text: str, before: str) -> tuple[int, str | None] | None:
        """What the text begins with. Without words it stays as it is. Returns None if it is no number."""
        return self._cached_match(text, _last_word(before))

    def _match(self, text: str, before: str) -> tuple[int, str | None] | None:
        if phone := (_PHONE_AFTER_PLUS if before.endswith("+") else _PHONE).match(text):
            return phone.end(), None
        kinds = self._date, self._named_date, self._time, self._amount, self._ordinal, self._range, self._quantity
        found = next((found for kind in kinds if (found := kind(text, before))), None)
        if found is None and (unread := _UNREAD.match(text)):
            return unread.end(), None
        return found

    def _date(self, text: str, before: str) -> Found | None:
        if found := _YEAR_FIRST.match(text):
            year, month, day = int(found[1]), int(found[3]), int(found[4])
        elif found := _YEAR_LAST.match(text):
            day, month, year = int(found[1]), int(found[3]), int(found[4])
            if self._code == "en" and found["mark"] == "/" and day <= 12:
                day, month = month, day
        else:
            return None
        is_date = 1 <= month <= 12 and 1 <= day <= 31
        return (found.end(), self._calendar.date(day, month, year, before)) if is_date else None

    def _named_date(self, text: str, before: str) -> Found | None:
        if self._code == "ru" and (found := _RUSSIAN_YEAR.match(text)):
            return found.end(), f"{self._calendar.ordinal_year(int(found[1]), _RUSSIAN_CASES[found[2]])} {found[2]}"
        found = _MONTH_DAY.match(text) if self._code == "en" and text[0].isalpha() else _DAY_MONTH.match(text)
        month = self._months.get(found["month"].lower()) if found else None
        if found is None or month is None or not 1 <= int(found["day"]) <= 31:
            return None
        day, year = int(found["day"]), int(found["year"]) if found["year"] else None
        if self._code == "en" and not text[0].isalpha():  # "16 November" keeps its order
            words = [self._calendar.day(day, before), "of" if found["of"] else "", found["month"]]
            words += [self._spell.year(year)] if year is not None else []
            return found.end(), " ".join(filter(None, words))
        return found.end(), self._calendar.date(day, month, year, before)

    def _time(self, text: str, before: str) -> Found | None:
        found = _TIME.match(text) or (_TIMES[self._code].match(text) if self._code in _TIMES else None)
        if found is None:
            return None
        end, hour, minute = found.end(), int(found[1]), int(found[2])
        if self._code == "en" and minute == 0 and _HALF_OF_DAY.match(text, end):
            return end, self._spell.cardinal(hour)
        mark = _HOUR_MARK.match(text, end) if self._code == "de" else None
        return mark.end() if mark else end, self._calendar.time(hour, minute)

    def _amount(self, text: str, before: str) -> Found | None:
        found = self._currency_first.match(text) or self._currency_last.match(text)
        if found is None or _CONTINUES.match(text, found.end()):
            return None
        magnitude = _MAGNITUDE.match(text, found.end()) if self._code == "en" else None
        name = found["currency"]
        words = self._quantities.with_currency(
            _parsed(found), SYMBOLS.get(name, name), symbol=name in SYMBOLS, magnitude=magnitude[1] if magnitude else ""
        )
        return magnitude.end() if magnitude else found.end(), words

    def _ordinal(self, text: str, before: str) -> Found | None:
        if self._code == "en" and (decade := _DECADE.match(text)):
            words = self._spell.year(int(decade[1]))
            return decade.end(), f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"
        if self._code == "de" and (found := _GERMAN_ORDINAL.match(text)) and self._calendar.has_article(before):
            return found.end(), self._calendar.day(int(found[1]), before)
        found = _ORDINALS[self._code].match(text) if self._code in _ORDINALS else None
        if found is None:
            return None
        gender = "" if self._code == "en" else "-feminine" if found[2] else "-masculine"
        return found.end(), self._spell.spell(int(found[1]), f"spellout-ordinal{gender}")

    def _range(self, text: str, before: str) -> Found | None:
        found = _RANGE.match(text)
        if found is None or int(found[1]) >= int(found[2]):
            return None
        rest = text[found.end() :]
        last = self._amount(rest, "") or self._quantity(rest, "")
        first = self._plain(Number(found[1]))
        return (found.end() + last[0], f"{first}{_TO[self._code]}{last[1]}") if last else None

    def _quantity(self, text: str, before: str) -> Found | None:
        """A number, with its unit if it has one."""
        found = self._number.match(text)
        if found is None or _CONTINUES.match(text, found.end()):
            return None
        number, end = _parsed(found), found.end()
        if unit := _UNIT.match(text, end):
            return unit.end(), self._quantities.with_unit(number, UNITS[unit[1]])
        if _GLUED.match(text, end):
            return None  # "4K", "3D"
        return end, self._counted(number, text[end:]) or self._plain(number)

    def _counted(self, number: Number, following: str) -> str | None:
        """The form before some nouns."""
        if number.fraction or number.negative:
            return None
        value, code = int(number.whole), self._code
        if code == "ko" and 0 < value < 100 and (counter := _KOREAN_COUNTER.match(following)):
            native = self._spell.spell(value, "spellout-cardinal-native-attributive")
            return native if counter[0][0] == " " else f"{native} "
        if code == "zh" and len(number.whole) == 4 and following.startswith("年"):
            return self._spell.digits(number.whole)
        if code == "zh" and value == 2 and _CHINESE_MEASURE.match(following):
            return "两"
        if value % 10 == 1 or code == "pt":
            for gender, noun in _NOUNS.get(code, {}).items():
                if noun.match(following):
                    return self._spell.cardinal(value, gender)
        return None

    def _plain(self, number: Number) -> str:
        if number.is_like_a_year and self._spell.reads_as_year(int(number.whole)):
            return self._spell.year(int(number.whole))
        return self._spell.number(number.whole, number.fraction, negative=number.negative)


def _last_word(before: str) -> str:
    """What the words of a number may depend on: a plus sign, or a short word such as a German article."""
    if before.endswith("+"):
        return "+"
    if not before or not before[-1].isspace():
        return ""
    word = _SHORT_WORD.search(before.rstrip()[-6:])
    return f"{word[0]} " if word else ""


def _number_pattern(code: str) -> str:
    """Digits, with marks between groups of three, and a fraction."""
    group, point = (",", r"\.") if code in ("en", "zh", "ja", "ko") else (r"[ .\u00a0\u202f]", ",")
    return rf"(?P<whole>\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+)(?:{point}(?P<fraction>\d+))?"


def _parsed(found: re.Match[str]) -> Number:
    whole = found["whole"]
    return Number(re.sub(r"\D", "", whole), found["fraction"] or "", bool(found["sign"]), grouped=not whole.isdigit())
