"""English numbers in words. Quick: a text of 200,000 characters may hold 100,000 numbers."""

from __future__ import annotations

from functools import lru_cache

from oscine.text.english.lexicon import words_of

MAX_DIGITS = 15  # longer numbers are read digit by digit
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺"
_ON_THE_LINE = str.maketrans(SUPERSCRIPTS, "0123456789-+")
_ONES = words_of(
    """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen"""
)
_TENS = words_of("- - twenty thirty forty fifty sixty seventy eighty ninety")
_SCALES = ["", " thousand", " million", " billion", " trillion"]
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


@lru_cache(maxsize=4096)
def cardinal(number: int) -> str:
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {cardinal(rest)}" if rest else "")
    groups, scale = [], 0
    while number:
        number, group = divmod(number, 1000)
        if group:
            groups.append(cardinal(group) + _SCALES[scale])
        scale += 1
    return " ".join(reversed(groups))


def digits(text: str) -> str:
    return " ".join(_ONES[int(digit)] for digit in text)


def whole(text: str) -> str:
    """A whole number from its digits: "007" and very long ones digit by digit."""
    if len(text) > MAX_DIGITS or (len(text) > 1 and text[0] == "0"):
        return digits(text)
    return cardinal(int(text))


def decimal(text: str) -> str:
    """Reads "3", "1,234.50" or ".5"."""
    before, point, after = text.replace(",", "").partition(".")
    return whole(before or "0") + (f" point {digits(after)}" if point and after else "")


def ordinal(number: int) -> str:
    words = cardinal(number)
    head, mark, last = words.rpartition("-") if "-" in words.rsplit(" ", 1)[-1] else words.rpartition(" ")
    last = _ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")
    return head + mark + last


def year(number: int) -> str:
    """Reads pairs of digits from 1010 to 1999 and from 2010 to 2099."""
    century, rest = divmod(number, 100)
    if not 1010 <= number < 2100 or 2000 <= number < 2010:
        return cardinal(number)
    if not rest:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def number(text: str) -> str:
    """A number without a unit; four digits may be a year."""
    if text == "911":
        return "nine one one"
    if len(text) == 4 and text.isdecimal() and 1010 <= int(text) < 2100:
        return year(int(text))
    return decimal(text)


def power(exponent: str) -> str:
    """Reads "²", "^2" or "-3" after a base."""
    text = exponent.translate(_ON_THE_LINE).lstrip("^+")
    sign, count = ("minus ", text[1:]) if text[:1] == "-" else ("", text)
    if not count.isdecimal():
        return ""
    if count in ("2", "3") and not sign:
        return "squared" if count == "2" else "cubed"
    return f"to the {sign}{ordinal(int(count)) if len(count) < 4 else digits(count)}"


def plural(words: str) -> str:
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}es" if words.endswith(("x", "s")) else f"{words}s"


def roman(text: str) -> int | None:
    """The value of a well-formed Roman numeral below 4000."""
    values = [_ROMAN[char] for char in text]
    value = sum(-one if one < after else one for one, after in zip(values, [*values[1:], 0], strict=True))
    return value if _as_roman(value) == text else None


def _as_roman(value: int) -> str:
    text = ""
    for one, chars in (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"), (10, "X"),
        (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ):  # fmt: skip
        count, value = divmod(value, one)
        text += chars * count
    return text
