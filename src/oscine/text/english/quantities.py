"""Reads what a group of English words begins with as an amount, date, time, measure, phone number or code."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from oscine.text.english import lexicon as lex
from oscine.text.english.numbers import (
    SUPERSCRIPTS,
    cardinal,
    decimal,
    digits,
    number,
    ordinal,
    plural,
    power,
    whole,
    year,
)

_NUM = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_END = r"(?![\w%°$€£¥@/\\]|[.,:]\d|-\d)"
_UNIT = "|".join(sorted(map(re.escape, lex.UNITS), key=len, reverse=True))
_MONEY = "|".join(sorted(map(re.escape, lex.CURRENCIES), key=len, reverse=True))
_MONEY_CHARS = frozenset(name[0] for name in lex.CURRENCIES)
_MONTH = "(?:" + "|".join(sorted({name.capitalize() for name in lex.MONTHS}, key=len, reverse=True)) + r")\b\.?"
_MAGNITUDE = r"(?:\s?(thousand|million|billion|trillion|[kKMBmb]n?|tn)\b)?"
_HALF = r"(?:\s?([AaPp])\.?[Mm]\b\.?)"

_PHONE = re.compile(
    r"(?:(\+\d{1,3})[ .-]?)?(?:\(\d{3}\) ?|\d{3}[-.])\d{3}[-. ]\d{4}" + _END
    + r"|\+\d{1,3}(?: ?\(0\) ?\d{2,8})?(?:[ -]\d{2,8}){1,5}" + _END
    + r"|\d{3}-\d{4}" + _END + r"|(?:0\d{1,4}|\(0\d{1,4}\)) \d{3,4} \d{3,4}" + _END + r"|0\d{4} \d{6}" + _END
    + r"|0\d(?: \d\d){4}" + _END
)  # fmt: skip
_VANITY = re.compile(r"(\+?\d)-(\d{3})-([A-Z]{2,10}(?:-[A-Z]{2,10})?)(?!\w)")
_CARD = re.compile(r"\d{4}(?:[ -]\d{4}){3}" + _END)
_ISO = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)" + _END)
_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?(Z?)(?![\w+]|-\d)")
_EU = re.compile(r"(\d\d?)\.(\d\d?)\.(\d{4})" + _END)
_US = re.compile(r"(\d\d?)/(\d\d?)/(\d{4}|\d\d)" + _END)
_DAY_MONTH = re.compile(rf"(\d\d?)(?:st|nd|rd|th)?\s(?:(of)\s)?({_MONTH})(?:,?\s(\d{{4}}){_END})?")
_MONTH_DAY = re.compile(
    rf"({_MONTH})\s(\d\d?)(?:st|nd|rd|th)?(?!\d|[.:/]\d|,\d{{3}}|%)\b"
    rf"(?:-(\d\d?)(?:st|nd|rd|th)?(?![\w.:/-]))?(?:,?\s(\d{{4}}){_END})?"
)
_TIME = rf"([01]?\d|2[0-4])(?::([0-5]\d))(?::([0-5]\d))?{_HALF}?"
_CLOCK = re.compile(_TIME + _END)
_DURATION = re.compile(r"(\d):([0-5]\d):([0-5]\d)(?!\s?[AaPp]\.?[Mm]\b)" + _END)
_HOUR = re.compile(r"(1[0-2]|0?\d)" + _HALF + _END)
_TIMES = re.compile(rf"(1[0-2]|0?\d|1\d|2[0-4])(?::([0-5]\d))?\s?-\s?([01]?\d|2[0-4])(?::([0-5]\d))?{_HALF}{_END}")
_HALVED_TIMES = re.compile(rf"(1[0-2]|0?\d)(?::([0-5]\d))?{_HALF}\s?-\s?(1[0-2]|0?\d)(?::([0-5]\d))?{_HALF}{_END}")
_CLOCKS = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)\s?-\s?([01]?\d|2[0-4]):([0-5]\d)" + _END)
_SPAN = re.compile(
    r"(?:(\d+)\s?(?:h|hrs?)\.?\s?)?(\d{1,2})\s?(?:m|mins?)\.?(?:\s?([0-5]?\d)\s?(?:s|secs?))?(?![\w/²³^]|[.,]\d)"
)
_PER = f"(?:{'|'.join(sorted(lex.PER, key=len, reverse=True))})"
_POWER_OF_UNIT = r"\^[23]|[²³]|(?<=m)[23](?!\d)"
_PER_UNIT = rf"(?:/(\d*)\s?({_PER}|{_UNIT})({_POWER_OF_UNIT})?(?![\w²³^/]))"
_RATE = rf"(?:/({_PER})\b)?"
_MONEY_FIRST = re.compile(rf"(-?)({_MONEY})\s?({_NUM})(?:[.,]-)?{_MAGNITUDE}(?![\w]|[.,]\d){_RATE}")
_MONEY_LAST = re.compile(rf"(-?)({_NUM})(?:[.,]-)?([kMmb]n?)?\s?({_MONEY})(?!\w){_RATE}")
_FEET_INCHES = re.compile(r"(\d+)\s?ft\.?\s(\d+)\s?in\b")
_TIMES_AS = re.compile(rf"({_NUM})x(?!\w|\s[-+=]){_RATE}")
_MAGNIFIED = re.compile(rf"({_NUM})(k|M|bn|mn|tn)(?!\w)")
_POWER = re.compile(rf"({_NUM})(?:\^(-?\d+){_END}|([{SUPERSCRIPTS}]+))")
_SCIENTIFIC = re.compile(rf"({_NUM})[eE]([-+]?)(\d{{1,3}}){_END}")
_TIMES_TEN = re.compile(rf"({_NUM})\s?[x×*]\s?10(?:\^(-?\d+){_END}|([{SUPERSCRIPTS}]+))")
_HEXADECIMAL = re.compile(r"0[xX]([0-9A-Fa-f]{1,32})(?!\w)")
# "3,5" and "1.200,50": decimals as most of Europe writes them.
_EUROPEAN = re.compile(r"(?<![\d.,])(?:\d{1,3}(?:\.\d{3})+|\d+),\d{1,2}(?![\d,]|\.\d)")
_SWAPPED = str.maketrans(",.", ".,")
_MONEY_RANGE = re.compile(rf"({_MONEY})({_NUM}){_MAGNITUDE}\s?-\s?(?:{_MONEY})?({_NUM}){_MAGNITUDE}(?!\w)")
_OF_UNIT = rf"(?:\s(?!A\b)({_UNIT})(?![\w²³/])|([\"%])(?!\w))?"
_MIXED = re.compile(rf"(?:(\d+)[\s-])?(\d{{1,3}})/(\d{{1,3}})(?:{_END}|(?=%)){_OF_UNIT}")
_WITH_FRACTION = re.compile(rf"(\d*)\s?([½¼¾⅓⅔⅛⅜⅝⅞])(?:{_END}|(?=%)){_OF_UNIT}")
_DATE_IN_YEAR = re.compile(r"(1[0-2]|0?[1-9])/(3[01]|[12]\d|0?[1-9])(?!\sof\b)" + _END)
_POSTAL = re.compile(r"\d{5}(?:-\d{4})?" + _END)
_OUT_OF = re.compile(r"(\d+\.\d+)/(\d+(?:\.\d+)?)" + _END)
_MEASURE = re.compile(
    rf"([-+±]?)({_NUM})(?:[%°]?\s?-\s?({_NUM}))?[\s-]?({_UNIT})({_POWER_OF_UNIT})?(?:{_PER_UNIT}|(?![\w²³^]|/\w))"
)
_IN_ADDRESS = re.compile(r"\.?\s(?:\d|[A-Z][a-z])")
_INCHES = re.compile(rf"({_NUM})(?:\"|\s?in\.|in\b)(?!\w)")
_FAHRENHEIT = re.compile(r"([-+]?)(\d{2,3}(?:\.\d+)?|\d\.\d+|(?<=[-+])\d)(?:\s?-\s?(\d+))?([FC])(?!\w)")
_FEET = re.compile(r"(\d+)'(?:\s?(\d+)(?:\"|'')?)?(?!\w)")
_RANGE = re.compile(rf"({_NUM})\s?-\s?({_NUM})" + _END)
_ORDINALS = re.compile(r"(\d{1,4})(?:st|nd|rd|th)\s?-\s?(\d{1,4})(?:st|nd|rd|th)\b")
_OF_BY = rf"({_NUM})(?:\s?({_UNIT}|in|\")(?:\.(?=\s))?)?"
_BY = re.compile(rf"{_OF_BY}\s?[x×]\s?{_OF_BY}(?:\s?[x×]\s?{_OF_BY})?" + r"(?![\w%°$€£¥@/\\=]|[,:]\d|\.\d|-\d|\s=)")
_SUM = re.compile(rf"{_NUM}(?:\s?[-+×x*÷/]\s?{_NUM})+(?=\s?=)")
_OPERATION = re.compile(rf"\s?([-+×x*÷/])\s?|({_NUM})")
_VERSES = re.compile(r"(\d{1,3}):(\d{1,3})-(\d{1,3})" + _END)
_SCORE = re.compile(r"(\d{1,3}):(\d{1,3})" + _END)
_ORDINAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,9})(?:st|nd|rd|th)\b")
_DECADE = re.compile(r"'?(\d{3}0|\d0)'?s\b")
_DOTTED = re.compile(r"[vV]?(\d+(?:\.\d+){2,})(?::(\d+))?" + _END)
_VERSION = re.compile(r"[vV](\d+(?:\.\d+)?)(?:-([a-z]+))?" + _END)
_SHORT_YEAR = re.compile(r"'(\d\d)" + _END)
_ABBREVIATED = re.compile(
    rf"(?:(?i:({'|'.join(sorted(lex.BEFORE_NUMBER, key=len, reverse=True))}))\.|№\s?)(\d+(?:\.\d+)*){_END}"
)
_MATH = re.compile(rf"({_NUM})([+=×÷*])(?=[\d.])")
_NUMBER = re.compile(rf"([-+]?)({_NUM})(?![\w°$€£¥@/\\²³]|[.,:]\d|-\d)")
_Found = re.Match[str]
_DENOMINATORS = {2: "half", 3: "third", 4: "quarter"}
_MAX_DIFFERENCE = 100  # of a score that falls: "101-98"
# What a number means after certain words: these stand for all words of their kind.
ATTRIBUTE, CODE, DATE, STATE, QUOTE = "a", "exit", "on", "CA", '"'


def _signed(sign: str, words: str) -> str:
    return {"-": "minus ", "+": "plus ", "±": "plus or minus "}.get(sign, "") + words


def date(day: int, month: int, year_text: str | None) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{lex.MONTH_NAMES[month - 1]} {ordinal(day)}" + (f", {_year(year_text)}" if year_text else "")


def _year(text: str) -> str:
    short = int(text)
    return year(short if len(text) == 4 else short + (2000 if short < 50 else 1900))


def _clock(hour: str, minute: str | None, half: str | None, second: str | None = None) -> str:
    if second and int(second):
        rest = f"and {_several(int(second), 'second')}"
        words = f"{cardinal(int(hour))} {'oh ' if int(minute or 0) < 10 else ''}{cardinal(int(minute or 0))} {rest}"
        return words + (f" {_HALVES[half.lower()]}" if half else "")
    words = cardinal(int(hour))
    if minute and int(minute):
        words += f" {'oh ' if int(minute) < 10 else ''}{cardinal(int(minute))}"
    elif not half and minute is not None:
        words += " o'clock" if 1 <= int(hour) <= 12 else " hundred"
    return words + (f" {_HALVES[half.lower()]}" if half else "")


_HALVES = {"a": "ay em", "p": "pea em"}


def _several(count: int, name: str) -> str:
    return f"{cardinal(count)} {name}{'' if count == 1 else 's'}"


def _span(found: _Found) -> str | None:
    """Reads "2h 30m", "45m 10s": an "m" without hours or seconds is a meter."""
    if not (found[1] or found[3]):
        return None
    counts = (found[1], "hour"), (found[2], "minute"), (found[3], "second")
    return " ".join(_several(int(count), name) for count, name in counts if count)


def _duration(found: _Found) -> str:
    names = zip(found.groups(), ("hour", "minute", "second"), strict=True)
    return ", ".join(_several(int(count), name) for count, name in names if int(count)) or "zero seconds"


def _score(found: _Found) -> str:
    if len(found[2]) == 2 and found[2][0] == "0":  # minutes and seconds
        return f"{decimal(found[1])} {'oh ' if found[2] != '00' else ''}{cardinal(int(found[2]))}"
    return f"{decimal(found[1])} to {decimal(found[2])}"


def _per(words: str, unit: str | None) -> str:
    return f"{words} per {lex.PER[unit]}" if unit else words


def _money_first(found: _Found) -> str:
    words = _per(_signed(found[1], _money(found[3], found[2], found[4])), found[5])
    return as_attribute(words) if re.match(r"-[a-z]", found.string[found.end() :]) else words  # "a $20-a-day job"


def _money(amount: str, currency: str, magnitude: str | None = None) -> str:
    one, several, cent, cents = lex.CURRENCIES[currency]
    if magnitude:
        return f"{decimal(amount)} {lex.MAGNITUDES[magnitude.lower()]} {several}"
    before, _, after = amount.replace(",", "").partition(".")
    if len(after) == 2 and cent:
        count = int(after)
        euros = f"{whole(before)} {one if before == '1' else several}" if before and int(before) else ""
        small = cardinal(count) if euros else f"{cardinal(count)} {cent if count == 1 else cents}"
        return " ".join(filter(None, (euros, small if count else ""))) or f"zero {several}"
    return f"{decimal(amount)} {one if amount == '1' else several}"


def _money_range(found: _Found) -> str:
    currency, least, times, most, magnitude = found.groups()
    first = _money(least, currency) if "." in least and not magnitude else decimal(least)
    if times and times != magnitude:
        first += f" {lex.MAGNITUDES[times.lower()]}"
    return f"{first} to {_money(most, currency, magnitude)}"


def _fraction(above: str, below: str) -> str:
    top, bottom = int(above), int(below)
    if (above, below) == ("24", "7"):
        return "twenty-four seven"
    if 0 < top < bottom <= 100 and bottom > 1 and (bottom <= 10 or bottom in (12, 16, 32)):
        name = _DENOMINATORS.get(bottom) or ordinal(bottom)
        return f"{cardinal(top)} {name if top == 1 else 'halves' if bottom == 2 else name + 's'}"
    return f"{whole(above)} {'out of' if top <= bottom else 'over'} {whole(below)}"


def phone(text: str) -> str:
    groups = [
        ("plus " if group[0] == "+" else "") + digits(re.sub(r"\D", "", group)) for group in re.findall(r"\+?\d+", text)
    ]
    return ", ".join(groups)


def _month_day(found: _Found) -> str | None:
    if not 1 <= int(found[2]) <= 31:
        return None
    month = lex.MONTHS[found[1].rstrip(".").lower()]
    days = ordinal(int(found[2])) + (f" to {ordinal(int(found[3]))}" if found[3] else "")
    return f"{month} {days}" + (f", {_year(found[4])}" if found[4] else "")


def _day_month(found: _Found) -> str | None:
    if not 1 <= int(found[1]) <= 31:
        return None
    words = f"{ordinal(int(found[1]))} {'of ' if found[2] else ''}{lex.MONTHS[found[3].rstrip('.').lower()]}"
    return words + (f" {_year(found[4])}" if found[4] else "")


def _times(found: _Found) -> str:
    first = _clock(found[1], found[2], None if found[2] else "p").removesuffix(" pea em")
    return f"{first} to {_clock(found[3], found[4], found[5])}"


def _halved_times(found: _Found) -> str:
    return f"{_clock(found[1], found[2], found[3])} to {_clock(found[4], found[5], found[6])}"


def _timestamp(found: _Found) -> str | None:
    day = date(int(found[3]), int(found[2]), found[1])
    return day and f"{day} at {_clock(found[4], found[5], None, found[6])}" + (" you tea see" if found[7] else "")


def _and_fraction(whole_text: str, words: str, unit: str | None) -> str:
    name = f" {_inch_or_unit(unit, is_one=not whole_text)}" if unit else ""
    return (f"{whole(whole_text)} and {words.replace('one ', 'a ', 1)}" if whole_text else words) + name


def _scientific(found: _Found) -> str:
    exponent = ("minus " if found[2] == "-" else "") + ordinal(int(found[3]))
    return f"{decimal(found[1])} times ten to the {exponent}"


def _measure(found: _Found) -> str | None:
    text = found.string
    if found[4] == "s" and _DECADE.match(text):
        return None
    if found[4] in ("N", "W") and _IN_ADDRESS.match(text, found.end()):
        return None  # "35 W 4th St."
    is_glued = text[found.start(4) - 1] == "-"
    amount = f"{decimal(found[2])} to {decimal(found[3])}" if found[3] else decimal(found[2])
    is_one = (found[2] == "1" and not found[3]) or is_glued
    words = f"{_signed(found[1], amount)} {unit_words(found[4], found[5], is_one=is_one)}"
    per, exponent = found[7], found[8]
    if not per:
        return words
    if found[6]:
        return f"{words} per {whole(found[6])} {lex.UNITS[per][1]}" if per in lex.UNITS else None
    if per not in lex.PER or (exponent and per in lex.LENGTHS):
        return f"{words} per {unit_words(per, exponent, is_one=True)}"
    return f"{words} per {lex.PER[per]}" + (f" {power(exponent)}" if exponent else "")


def unit_words(unit: str, exponent: str | None, *, is_one: bool) -> str:
    name = lex.UNITS[unit][not is_one]
    if not exponent:
        return name
    if unit in lex.LENGTHS:
        return f"{'square' if exponent[-1] in '2²' else 'cubic'} {name}"
    return f"{name} {power(exponent)}"


def _by(found: _Found) -> str:
    sides = list(zip(found.groups()[::2], found.groups()[1::2], strict=True))
    return " by ".join(
        decimal(amount) + (f" {_inch_or_unit(unit, is_one=amount == '1')}" if unit else "")
        for amount, unit in sides
        if amount
    )


def _inch_or_unit(unit: str, *, is_one: bool) -> str:
    return ("inch" if is_one else "inches") if unit in ("in", '"') else unit_words(unit, None, is_one=is_one)


def _sum(found: _Found) -> str:
    """What stands before "=": here a dash is a minus."""
    operations = _OPERATION.finditer(found[0])
    return " ".join(_SIGNS.get(one[1]) or lex.SYMBOLS[one[1]] if one[1] else decimal(one[2]) for one in operations)


_SIGNS = {"-": "minus", "x": "times", "/": "divided by"}


def _range(found: _Found) -> str:
    first, last = found[1], found[2]
    falls = float(first.replace(",", "")) - float(last.replace(",", ""))
    is_code = len(first) > 2 and first.isdecimal() and (falls > _MAX_DIFFERENCE or first[0] == "0")
    return phone(found[0]) if is_code else f"{number(first)} to {number(last)}"


def _feet(found: _Found) -> str:
    if found[2]:
        return f"{whole(found[1])} foot {whole(found[2])}"
    return f"{whole(found[1])} {'foot' if found[1] == '1' else 'feet'}"


def _fahrenheit(found: _Found) -> str:
    unit = "Fahrenheit" if found[4] == "F" else "Celsius"
    amount = decimal(found[2]) + (f" to {decimal(found[3])}" if found[3] else "")
    return f"{_signed(found[1], amount)} degrees {unit}"


def _decade(found: _Found) -> str:
    return plural(_year(found[1]) if len(found[1]) == 4 else cardinal(int(found[1])))


def _dotted(found: _Found) -> str:
    version = "version " if found[0][0] in "vV" else ""
    port = f", colon {whole(found[2])}" if found[2] else ""
    return version + " point ".join(map(whole, found[1].split("."))) + port


def _abbreviated(found: _Found) -> str:
    name = lex.BEFORE_NUMBER[found[1].lower()] if found[1] else "number"
    return f"{name} {' point '.join(map(whole, found[2].split('.')))}"


def _version(found: _Found) -> str:
    return f"version {decimal(found[1])}" + (f" {found[2]}" if found[2] else "")


def _hexadecimal(found: _Found) -> str:
    spoken = (digits(char) if char.isdecimal() else lex.LETTERS[char] for char in found[1].upper())
    return f"zero ex {' '.join(spoken)}"


def _money_last(found: _Found) -> str:
    return _per(_signed(found[1], _money(found[2], found[4], found[3])), found[5])


def _mixed(found: _Found) -> str:
    return _and_fraction(found[1], _fraction(found[2], found[3]), found[4] or found[5])


# What is read, first match first: characters of which one must be in the text, a pattern, and the words.
_NUMERIC: tuple[tuple[frozenset[str], re.Pattern[str], Callable[[_Found], str | None]], ...] = tuple(
    (frozenset(chars), pattern, read)
    for chars, pattern, read in (
        ("=", _SUM, _sum),
        ("-", _VANITY, lambda found: f"{phone(found[1])}, {digits(found[2])}, {found[3].lower().replace('-', ' ')}"),
        ("+-.( ", _PHONE, lambda found: phone(found[0])),
        (" -", _CARD, lambda found: phone(found[0])),
        ("T", _TIMESTAMP, _timestamp),
        ("-", _ISO, lambda found: date(int(found[3]), int(found[2]), found[1])),
        ("/", _US, lambda found: date(int(found[2]), int(found[1]), found[3])),
        (".", _EU, lambda found: date(int(found[1]), int(found[2]), found[3])),
        ("JFMASOND", _MONTH_DAY, _month_day),
        ("JFMASOND", _DAY_MONTH, _day_month),
        ("-", _HALVED_TIMES, _halved_times),
        ("-", _TIMES, _times),
        (":", _CLOCKS, lambda found: f"{_clock(found[1], found[2], None)} to {_clock(found[3], found[4], None)}"),
        (":", _DURATION, _duration),
        (":", _CLOCK, lambda found: _clock(found[1], found[2], found[4], found[3])),
        (":", _VERSES, lambda found: f"{decimal(found[1])} {decimal(found[2])} to {decimal(found[3])}"),
        (":", _SCORE, _score),
        ("mM", _HOUR, lambda found: _clock(found[1], None, found[2])),
        ("-", _MONEY_RANGE, _money_range),
        (_MONEY_CHARS, _MONEY_FIRST, _money_first),
        (_MONEY_CHARS, _MONEY_LAST, _money_last),
        ("xX", _HEXADECIMAL, _hexadecimal),
        (
            "x\u00d7*",
            _TIMES_TEN,
            lambda found: f"{decimal(found[1])} times ten {power(found[2] or found[3])}",
        ),
        ("x\u00d7", _BY, _by),
        ("/", _MIXED, _mixed),
        ("/", _OUT_OF, lambda found: f"{decimal(found[1])} out of {decimal(found[2])}"),
        (
            lex.FRACTIONS,
            _WITH_FRACTION,
            lambda found: _and_fraction(found[1], lex.FRACTIONS[found[2]], found[3] or found[4]),
        ),
        ("f", _FEET_INCHES, lambda found: f"{whole(found[1])} foot {whole(found[2])}"),
        ("m", _SPAN, _span),
        ("x", _TIMES_AS, lambda found: _per(f"{decimal(found[1])} times", found[2])),
        ("kMn", _MAGNIFIED, lambda found: f"{decimal(found[1])} {lex.MAGNITUDES[found[2].lower()]}"),
        (f"^{SUPERSCRIPTS}", _POWER, lambda found: f"{decimal(found[1])} {power(found[2] or found[3])}"),
        ("eE", _SCIENTIFIC, _scientific),
        ("'", _FEET, _feet),
        ("FC", _FAHRENHEIT, _fahrenheit),
        ({name[0] for name in lex.UNITS}, _MEASURE, _measure),
        ('"i', _INCHES, lambda found: f"{decimal(found[1])} {_inch_or_unit('in', is_one=found[1] == '1')}"),
        ("-", _ORDINALS, lambda found: f"{ordinal(int(found[1]))} to {ordinal(int(found[2]))}"),
        ("tdh", _ORDINAL, lambda found: ordinal(int(found[1].replace(",", "")))),
        ("s", _DECADE, _decade),
        ("'", _SHORT_YEAR, lambda found: number(found[1])),
        (".№", _ABBREVIATED, _abbreviated),
        (".", _DOTTED, _dotted),
        ("vV", _VERSION, _version),
        ("-", _RANGE, _range),
        ("+=\u00d7\u00f7*", _MATH, lambda found: f"{decimal(found[1])} {lex.SYMBOLS[found[2]]} "),
        ("0123456789", _NUMBER, lambda found: _signed(found[1], number(found[2]))),
    )
)


# For each character, the patterns that need it: bit n is the n-th one.
_NEEDED_BY: dict[str, int] = {}
for _index, _rule in enumerate(_NUMERIC):
    for _char in _rule[0]:
        _NEEDED_BY[_char] = _NEEDED_BY.get(_char, 0) | 1 << _index
_MEASURES = {pattern: 1 << index for index, (_, pattern, _) in enumerate(_NUMERIC)}
# Not after "exit" or "Apt.", where "12A" and "4C" are codes; nor in quotes.
_NOT_CODES = _MEASURES[_MEASURE] | _MEASURES[_FAHRENHEIT] | _MEASURES[_MAGNIFIED] | _MEASURES[_INCHES]
_NOT_QUOTED = _MEASURES[_INCHES] | _MEASURES[_FEET]


@lru_cache(maxsize=1024)
def numeric(text: str, before: str = "") -> tuple[int, str] | None:
    """What a group of words begins with that has digits, a sign of a currency or the name of a month.

    `before`: the kind of the word before it, one of ATTRIBUTE, CODE, DATE, STATE, QUOTE."""
    if "," in text:
        text = _EUROPEAN.sub(lambda found: found[0].translate(_SWAPPED), text)
    if before == DATE and (found := _DATE_IN_YEAR.match(text)):
        return found.end(), date(int(found[2]), int(found[1]), None) or ""
    if before == STATE and (found := _POSTAL.match(text)):
        return found.end(), phone(found[0])
    possible = 0
    for char in set(text):
        possible |= _NEEDED_BY.get(char, 0)
    possible &= ~(_NOT_CODES if before == CODE else _NOT_QUOTED if before == QUOTE else 0)
    while possible:
        lowest = possible & -possible
        possible ^= lowest
        _, pattern, read = _NUMERIC[lowest.bit_length() - 1]
        if (found := pattern.match(text)) and (spoken := read(found)):
            return found.end(), spoken
    return None


def as_attribute(words: str) -> str:
    """Units before a noun: "a sixteen gigabyte phone"."""
    return " ".join([_SINGULAR.get(word, word) for word in words.split(" ")])


_SINGULAR = {
    many: one
    for names in (*lex.UNITS.values(), *lex.CURRENCIES.values())
    for several, single in ((names[1], names[0]),)
    for many, one in zip(several.split(" "), single.split(" "), strict=True)
    if many != one
} | {"inches": "inch", "hours": "hour", "minutes": "minute", "seconds": "second"}
