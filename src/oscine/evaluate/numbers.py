"""English numbers: written ones become words, and of several ways to say one number all become the same.

1500 is said "fifteen hundred" or "one thousand five hundred", 2010 "twenty ten" or "two thousand and ten". No writing
tells which was said, so every number in words is read and said anew in one way, that of `number_words`. The standard
library only, as words.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {"trillion": 10**12, "billion": 10**9, "million": 10**6, "thousand": 1000}
_BIG = {"hundred", *_SCALES}
_VALUES = {word: value for value, word in enumerate(_ONES) if value}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS) if word}

_IRREGULAR = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_TH, _S = "-th", "-s"  # endings as words of their own: no word that was said has a dash

_MAX_DIGITS = 15  # hundreds of trillions; a longer number is read digit by digit
_LONGEST_PLAIN = 6  # so is one of more digits than that without commas: nobody counts a telephone number

_DIGITS = r"\d{1,3}(?:,\d{3})+(?!\d)|\d+"
_NUMBER = re.compile(rf"({_DIGITS})((?:\.\d+)*)(?:(st|nd|rd|th|s)\b|\s?(°))?")
_MONEY = re.compile(rf"([$£€])\s?({_DIGITS})((?:\.\d+)?)(?:\s({'|'.join(sorted(_BIG))})\b)?")
_CURRENCIES = {"$": ("dollar", "cent", "cents"), "£": ("pound", "penny", "pence"), "€": ("euro", "cent", "cents")}
_TIME = re.compile(r"(?<![\d.,:])(\d{1,2}):([0-5]\d)(?!\d)")
_MINUS = re.compile(r"(?<![\w.-])-(?=[$£€]?\d)")
_POINT_FIRST = re.compile(r"(?<![\w.$£€])\.(\d+)")


def number_words(number: int) -> str:
    """The one way to say it: "and" is left out, and 1100 to 1999 and 2010 to 2099 are said as years are."""
    if 1100 <= number < 2000 or 2010 <= number < 2100:
        century, rest = _cardinal(number // 100), number % 100
        return f"{century} {'hundred' if rest == 0 else f'oh {_ONES[rest]}' if rest < 10 else _cardinal(rest)}"
    return _cardinal(number)


def _cardinal(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + ("" if number % 10 == 0 else " " + _ONES[number % 10])
    name, scale = next(((name, scale) for name, scale in _SCALES.items() if scale <= number), ("hundred", 100))
    rest = number % scale
    return f"{_cardinal(number // scale)} {name}" + ("" if rest == 0 else " " + _cardinal(rest))


def spell_out(text: str) -> str:
    """Numbers, times and amounts of money that are written with digits become words. Expects lower case."""
    text = _TIME.sub(lambda time: f" {_clock(int(time[1]), int(time[2]))} ", text)
    text = _MONEY.sub(lambda money: f" {_amount(*money.groups(''))} ", _MINUS.sub(" minus ", text))
    text = _POINT_FIRST.sub(lambda part: f" point {_digit_by_digit(part[1])} ", text)
    return _NUMBER.sub(lambda number: f" {_number(*number.groups(''))} ", text)


def _clock(hour: int, minute: int) -> str:
    if minute == 0:
        return _cardinal(hour)
    return f"{_cardinal(hour)} {'oh ' if minute < 10 else ''}{_cardinal(minute)}"


def _amount(sign: str, whole: str, fraction: str, big: str) -> str:
    unit, hundredth, hundredths = _CURRENCIES[sign]
    if big or len(fraction) not in (0, 3):
        return f"{_said(whole, fraction)} {big} {unit}s"
    few = int(fraction[1:] or 0)
    parts = [] if whole == "0" and few else [f"{_said(whole)} {unit if whole == '1' else unit + 's'}"]
    parts += [f"{_cardinal(few)} {hundredth if few == 1 else hundredths}"] if few else []
    return " and ".join(parts)


def _number(whole: str, fraction: str, ending: str, degrees: str) -> str:
    said = _said(whole, fraction)
    if degrees:
        return f"{said} {'degree' if said == 'one' else 'degrees'}"
    return _ended(said, _S if ending == "s" else _TH) if ending else said


def _said(whole: str, fraction: str = "") -> str:
    digits = whole.replace(",", "")
    counted = "," in whole or len(digits) <= _LONGEST_PLAIN or digits.endswith("000")
    if len(digits) > _MAX_DIGITS or not counted or (digits[0] == "0" and len(digits) > 1):
        said = _digit_by_digit(digits)
    else:
        said = number_words(int(digits))
    return " point ".join([said, *(_digit_by_digit(part) for part in fraction.split(".")[1:])])


def _digit_by_digit(digits: str) -> str:
    return " ".join(_ONES[int(digit)] for digit in digits)


def _ended(said: str, ending: str) -> str:
    *before, last = said.split(" ")
    if ending == _S:
        last = last[:-1] + "ies" if last.endswith("y") else last + "s"
    else:
        last = _IRREGULAR.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th")
    return " ".join([*before, last])


_ENDINGS = {_ended(word, ending): [word, ending] for word in (*_VALUES, *_BIG) for ending in (_TH, _S)}


def say_alike(words: Sequence[str]) -> list[str]:
    """Every number among the words in the one way of `number_words`, other words as they are."""
    apart = [part for word in words for part in _ENDINGS.get(word, [word])]
    count = len(apart)
    apart += ["", ""]  # so far do readers look ahead
    said: list[str] = []
    at = 0
    while at < count:
        word = apart[at]
        if word == "a" and apart[at + 1] in _BIG:
            apart[at] = word = "one"
        number, end = _read(apart, at)
        if number:
            said += number_words(number).split(" ")
        elif word in (_TH, _S):
            said[-1] = _ended(said[-1], word)
        else:
            said.append(word)
        at = max(end, at + 1)
    return said


Read = tuple[int, int]  # a number, and where the words after it begin; 0: there is none


def _read(words: Sequence[str], at: int) -> Read:
    year, end = _read_year(words, at)
    if year:
        return year, end
    total, end, limit = 0, at, 10**_MAX_DIGITS
    while limit > 1:
        joined = total > 0 and words[end] == "and"
        value, after = _read_hundreds(words, end + joined)
        scale = _SCALES.get(words[after], 1)
        # "Between one thousand and two hundred", "two thousand five million": another number begins.
        another = scale >= limit or (joined and value >= 100) or (value >= 1000 and (total > 0 or scale > 1))
        if value == 0 or another:
            break
        total, end, limit = total + value * scale, after + (scale > 1), scale
    return total, end


def _read_year(words: Sequence[str], at: int) -> Read:
    century, end = _read_pair(words, at)
    oh = words[end] == "oh"
    year, after = _read_pair(words, end + oh)
    if 10 < century <= 20 and (0 < year < 10 if oh else year >= 10) and words[after] not in _BIG:
        return 100 * century + year, after
    return 0, at


def _read_hundreds(words: Sequence[str], at: int) -> Read:
    value, end = _read_pair(words, at)
    if not value or words[end] != "hundred":
        return value, end
    rest, after = _read_pair(words, end + 1 + (words[end + 1] == "and"))
    if rest == 0 or words[after] == "hundred":  # "between one hundred and two hundred"
        return 100 * value, end + 1
    return 100 * value + rest, after


def _read_pair(words: Sequence[str], at: int) -> Read:
    value, ones = _VALUES.get(words[at], 0), _VALUES.get(words[at + 1], 0)
    if value >= 20 and 0 < ones < 10:
        return value + ones, at + 2
    return value, at + (value > 0)
