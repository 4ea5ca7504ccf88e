"""Reads one group of words of an English text, such as "$3.5 million" or "Dr.", and writes it as it is spoken."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from oscine.text.english import lexicon as lex
from oscine.text.english.numbers import cardinal, decimal, digits, ordinal, plural, roman, whole, year

_NUM = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_END = r"(?![\w%°$€£¥@/\\]|[.,:]\d|-\d)"
_UNIT = "|".join(sorted(map(re.escape, lex.UNITS), key=len, reverse=True))
_MONEY = "|".join(sorted(map(re.escape, lex.CURRENCIES), key=len, reverse=True))
_MONEY_CHARS = frozenset(name[0] for name in lex.CURRENCIES)
_MONTH = "(?:" + "|".join(sorted({name.capitalize() for name in lex.MONTHS}, key=len, reverse=True)) + r")\b\.?"
_MAGNITUDE = r"(?:\s?(thousand|million|billion|trillion|[kKMBmb]n?|tn)\b)?"
_HALF = r"(?:\s?([AaPp])\.?[Mm]\b\.?)"

_PHONE = re.compile(
    r"(?:(\+\d{1,3})[ .-]?)?(?:\(\d{3}\) ?|\d{3}[-.])\d{3}[-. ]\d{4}" + _END + r"|\+\d{1,3}(?:[ -]\d{2,8}){1,5}" + _END
    + r"|\d{3}-\d{4}" + _END + r"|0\d{2,4} \d{3,4} \d{3,4}" + _END
)  # fmt: skip
_VANITY = re.compile(r"(\d)-(\d{3})-([A-Z]{3,10})(?!\w)")
_CARD = re.compile(r"\d{4}(?:[ -]\d{4}){3}" + _END)
_ISO = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)" + _END)
_TIMESTAMP = re.compile(r"(\d{4})-(\d\d)-(\d\d)T([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?(Z?)(?![\w+]|-\d)")
_EU = re.compile(r"(\d\d?)\.(\d\d?)\.(\d{4})" + _END)
_US = re.compile(r"(\d\d?)/(\d\d?)/(\d{4}|\d\d)" + _END)
_DAY_MONTH = re.compile(rf"(\d\d?)(?:st|nd|rd|th)?\s(?:(of)\s)?({_MONTH})(?:,?\s(\d{{4}}){_END})?")
_MONTH_DAY = re.compile(rf"({_MONTH})\s(\d\d?)(?:st|nd|rd|th)?(?!\d|[.:/]\d|,\d{{3}}|%)\b(?:,?\s(\d{{4}}){_END})?")
_TIME = rf"([01]?\d|2[0-4])(?::([0-5]\d))(?::([0-5]\d))?{_HALF}?"
_CLOCK = re.compile(_TIME + _END)
_HOUR = re.compile(r"(1[0-2]|0?\d)" + _HALF + _END)
_TIMES = re.compile(rf"(1[0-2]|0?\d|1\d|2[0-4])(?::([0-5]\d))?\s?-\s?([01]?\d|2[0-4])(?::([0-5]\d))?{_HALF}{_END}")
_HALVED_TIMES = re.compile(rf"(1[0-2]|0?\d)(?::([0-5]\d))?{_HALF}\s?-\s?(1[0-2]|0?\d)(?::([0-5]\d))?{_HALF}{_END}")
_CLOCKS = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)\s?-\s?([01]?\d|2[0-4]):([0-5]\d)" + _END)
_PER = f"(?:{'|'.join(sorted(lex.PER, key=len, reverse=True))})"
_RATE = rf"(?:/({_PER})\b)?"
_MONEY_FIRST = re.compile(rf"(-?)({_MONEY})\s?({_NUM}){_MAGNITUDE}(?![\w]|[.,]\d){_RATE}")
_MONEY_LAST = re.compile(rf"(-?)({_NUM})([kMmb]n?)?\s?({_MONEY})(?!\w){_RATE}")
_FEET_INCHES = re.compile(r"(\d+)\s?ft\.?\s(\d+)\s?in\b")
_TIMES_AS = re.compile(rf"({_NUM})x(?!\w)")
_MAGNIFIED = re.compile(rf"({_NUM})(k|M|bn|mn|tn)(?!\w)")
_POWER = re.compile(rf"({_NUM})\^(-?)(\d+)" + _END)
# "3,5" and "1.200,50": decimals as most of Europe writes them.
_EUROPEAN = re.compile(r"(?<![\d.,])(?:\d{1,3}(?:\.\d{3})+|\d+),\d{1,2}(?![\d,]|\.\d)")
_SWAPPED = str.maketrans(",.", ".,")
_MONEY_RANGE = re.compile(rf"({_MONEY})({_NUM})\s?-\s?(?:{_MONEY})?({_NUM}){_MAGNITUDE}(?!\w)")
_OF_UNIT = rf"(?:\s(?!A\b)({_UNIT})(?![\w²³/]))?"
_MIXED = re.compile(rf"(?:(\d+)\s)?(\d{{1,3}})/(\d{{1,3}}){_END}{_OF_UNIT}")
_WITH_FRACTION = re.compile(rf"(\d*)\s?([½¼¾⅓⅔⅛⅜⅝⅞]){_END}{_OF_UNIT}")
_MEASURE = re.compile(rf"([-+]?)({_NUM})(?:\s?-\s?({_NUM}))?[\s-]?({_UNIT})(?![\w²³]|/(?!{_PER}\b)){_RATE}")
_FEET = re.compile(r"(\d+)'\s?(\d+)(?:\"|'')?(?!\w)")
_RANGE = re.compile(rf"({_NUM})\s?-\s?({_NUM})" + _END)
_BY = re.compile(rf"({_NUM})\s?[x×]\s?({_NUM})(?:\s?[x×]\s?({_NUM}))?" + _END)
_SCORE = re.compile(r"(\d{1,3}):(\d{1,3})" + _END)
_ORDINAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,9})(?:st|nd|rd|th)\b")
_DECADE = re.compile(r"'?(\d{3}0|\d0)'?s\b")
_DOTTED = re.compile(r"[vV]?(\d+(?:\.\d+){2,})(?::(\d+))?" + _END)
_VERSION = re.compile(r"[vV](\d+(?:\.\d+)?)" + _END)
_MATH = re.compile(rf"({_NUM})([+=×÷*])(?=[\d.])")
_NUMBER = re.compile(rf"([-+]?)({_NUM})(?![\w°$€£¥@/\\]|[.,:]\d|-\d)")
_EMAIL = re.compile(r"(?:mailto:)?([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)")
_URL = re.compile(
    r"(?:https?://|www\.)[^\s]*[\w/]|(?:[A-Za-z0-9-]+\.)+(?:com|org|net|io|gov|edu|info|dev|app|ai|co\.uk)(?:/[\w./?=&#%+-]*[\w/])?(?!\w)"
)
_FILE = re.compile(
    rf"((?:[\w~.-]*[/\\])*[\w-]+(?:\.[\w-]+)*)\."
    rf"((?i:{'|'.join(sorted(lex.EXTENSIONS, key=len, reverse=True))}))(?!\w)"
)
_FOLDERS = re.compile(r"[A-Za-z]:\\[\w\\.~-]*\w|(?:~|\.{1,2})?(?:/[\w.~-]+)+(?<=\w)(?!\w)")
_TAGGED = re.compile(r"#([A-Z\d]*-?\d[A-Z\d-]*)(?!\w)|([#@])(\w+)")
_CODE = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*(?![\w])")
_INITIALS = re.compile(r"(?:[A-Za-z]\.){2,}(?:[A-Za-z](?!\w))?")
_WORD = re.compile(r"[A-Za-z]+(?:['-][A-Za-z]+)*")
_SYMBOL_CHARS = frozenset(lex.SYMBOLS)
_NO_SYMBOLS = re.compile(f"[^{''.join(map(re.escape, lex.SYMBOLS))}]+")
_CAPITALS_APART = re.compile(r"[A-Z](?:[/&][A-Z])+")
_PARTS = re.compile(r"[A-Za-z]+(?:'[A-Za-z]+)*|\d+(?:\.\d+)?|.", re.DOTALL)
_COMMAS = re.compile(r"(?: ?,)+")
_ACCENTED = re.compile(r"[^\W\d_]+")
_Found = re.Match[str]
_DENOMINATORS = {2: "half", 3: "third", 4: "quarter"}
_SMALL = frozenset(
    lex.words_of(
        """a an am as at be by do go he hi if in is it me my no of oh on or so to up us we all and any are ask bad bag
    bed big box boy but buy can car cat cut dad day did dog eat end far few fix for fun get god got had has her
    hey him his hot how its job joy kid law let lie lot low mad man may men mom new nor not now off old one our
    out own pay per put ran red run sad saw say see set she shy sit six son sun ten the too top toy try two use
    war was way who why win wow yes yet you"""
    )
)
_VOWEL = re.compile(r"[AEIOUY]")
_UNSAYABLE = re.compile(r"[BCDFGHJKLMNPQRSTVWXZ]{4}|^[BCDFGHJKLMNPQRSTVWXZ]{3}")


def letters(text: str) -> str:
    return " ".join(lex.LETTERS.get(char, char) for char in text.upper())


@lru_cache(maxsize=4096)
def capitals(word: str) -> str:
    """A word in capitals: as a word if it is one, or else by its letters."""
    stem, ending = (word[:-1], "s") if word.endswith("s") and len(word) > 2 else (word, "")
    if stem in lex.SPOKEN_ACRONYMS:
        return lex.SPOKEN_ACRONYMS[stem] + ending
    if stem in lex.SPELLED:
        return letters(stem) + ("'s" if ending else "")
    if stem.lower() in _SMALL:
        return stem.lower() + ending
    if len(stem) <= 3 or not _VOWEL.search(stem) or _UNSAYABLE.search(stem):
        return letters(stem) + ("'s" if ending else "")
    return stem.lower() + ending


def _signed(sign: str, words: str) -> str:
    return {"-": "minus ", "+": "plus "}.get(sign, "") + words


def number(text: str) -> str:
    """A number without a unit; four digits may be a year."""
    if len(text) == 4 and text.isdigit() and 1100 <= int(text) < 2100:
        return year(int(text))
    return decimal(text)


def date(day: int, month: int, year_text: str | None) -> str | None:
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{lex.MONTH_NAMES[month - 1]} {ordinal(day)}" + (f", {_year(year_text)}" if year_text else "")


def _year(text: str) -> str:
    short = int(text)
    return year(short if len(text) == 4 else short + (2000 if short < 50 else 1900))


def _clock(hour: str, minute: str | None, half: str | None, second: str | None = None) -> str:
    if second and int(second):
        rest = f"and {cardinal(int(second))} second{'' if int(second) == 1 else 's'}"
        words = f"{cardinal(int(hour))} {'oh ' if int(minute or 0) < 10 else ''}{cardinal(int(minute or 0))} {rest}"
        return words + (f" {_HALVES[half.lower()]}" if half else "")
    words = cardinal(int(hour))
    if minute and int(minute):
        words += f" {'oh ' if int(minute) < 10 else ''}{cardinal(int(minute))}"
    elif not half and minute is not None:
        words += " o'clock" if 1 <= int(hour) <= 12 else " hundred"
    return words + (f" {_HALVES[half.lower()]}" if half else "")


_HALVES = {"a": "ay em", "p": "pea em"}


def _per(words: str, unit: str | None) -> str:
    return f"{words} per {lex.PER[unit]}" if unit else words


def _money_first(found: _Found) -> str:
    words = _money(found[3], found[2], found[4])
    one, several = lex.CURRENCIES[found[2]][:2]
    if re.match(r"-[a-z]", found.string[found.end() :]):  # "a $20-a-day job"
        words = words.removesuffix(several) + one if words.endswith(several) else words
    return _per(_signed(found[1], words), found[5])


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


def _fraction(above: str, below: str) -> str:
    top, bottom = int(above), int(below)
    if (above, below) == ("24", "7"):
        return "twenty-four seven"
    if 0 < top < bottom <= 100 and bottom > 1 and (bottom <= 10 or bottom in (12, 16, 20, 32, 100)):
        name = _DENOMINATORS.get(bottom) or ordinal(bottom)
        return f"{cardinal(top)} {name if top == 1 else 'halves' if bottom == 2 else name + 's'}"
    return f"{whole(above)} {'out of' if top <= bottom else 'over'} {whole(below)}"


def phone(text: str) -> str:
    groups = [
        ("plus " if group[0] == "+" else "") + digits(re.sub(r"\D", "", group)) for group in re.findall(r"\+?\d+", text)
    ]
    return ", ".join(groups)


def _exponent(text: str) -> str:
    return ordinal(int(text)) if len(text) < 4 else digits(text)


def _month_day(found: _Found) -> str | None:
    if not 1 <= int(found[2]) <= 31:
        return None
    month = lex.MONTHS[found[1].rstrip(".").lower()]
    return f"{month} {ordinal(int(found[2]))}" + (f", {_year(found[3])}" if found[3] else "")


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
    name = f" {lex.UNITS[unit][bool(whole_text)]}" if unit else ""
    return (f"{whole(whole_text)} and {words.replace('one ', 'a ', 1)}" if whole_text else words) + name


def _measure(found: _Found) -> str | None:
    text = found.string
    if found[4] == "s" and _DECADE.match(text):
        return None
    one, several = lex.UNITS[found[4]]
    is_glued = text[found.start(4) - 1] == "-"
    amount = f"{decimal(found[2])} to {decimal(found[3])}" if found[3] else decimal(found[2])
    is_one = (found[2] == "1" and not found[3]) or is_glued
    return _per(f"{_signed(found[1], amount)} {one if is_one else several}", found[5])


def _decade(found: _Found) -> str:
    return plural(_year(found[1]) if len(found[1]) == 4 else cardinal(int(found[1])))


def _dotted(found: _Found) -> str:
    version = "version " if found[0][0] in "vV" else ""
    port = f", colon {whole(found[2])}" if found[2] else ""
    return version + " point ".join(map(whole, found[1].split("."))) + port


# What is read, first match first: characters of which one must be in the text, a pattern, and the words.
_NUMERIC: tuple[tuple[frozenset[str], re.Pattern[str], Callable[[_Found], str | None]], ...] = tuple(
    (frozenset(chars), pattern, read)
    for chars, pattern, read in (
        ("+-.( ", _PHONE, lambda found: phone(found[0])),
        ("-", _VANITY, lambda found: f"{digits(found[1])}, {digits(found[2])}, {found[3].lower()}"),
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
        (":", _CLOCK, lambda found: _clock(found[1], found[2], found[4], found[3])),
        (":", _SCORE, lambda found: f"{decimal(found[1])} to {decimal(found[2])}"),
        ("mM", _HOUR, lambda found: _clock(found[1], None, found[2])),
        ("-", _MONEY_RANGE, lambda found: f"{decimal(found[2])} to {_money(found[3], found[1], found[4])}"),
        (_MONEY_CHARS, _MONEY_FIRST, _money_first),
        (
            _MONEY_CHARS,
            _MONEY_LAST,
            lambda found: _per(_signed(found[1], _money(found[2], found[4], found[3])), found[5]),
        ),
        ("x\u00d7", _BY, lambda found: " by ".join(decimal(one) for one in found.groups() if one)),
        ("/", _MIXED, lambda found: _and_fraction(found[1], _fraction(found[2], found[3]), found[4])),
        (lex.FRACTIONS, _WITH_FRACTION, lambda found: _and_fraction(found[1], lex.FRACTIONS[found[2]], found[3])),
        ("f", _FEET_INCHES, lambda found: f"{whole(found[1])} foot {whole(found[2])}"),
        ("x", _TIMES_AS, lambda found: f"{decimal(found[1])} times"),
        ("kMn", _MAGNIFIED, lambda found: f"{decimal(found[1])} {lex.MAGNITUDES[found[2].lower()]}"),
        ("^", _POWER, lambda found: f"{decimal(found[1])} to the {'minus ' if found[2] else ''}{_exponent(found[3])}"),
        ("'", _FEET, lambda found: f"{whole(found[1])} foot {whole(found[2])}"),
        ({name[0] for name in lex.UNITS}, _MEASURE, _measure),
        ("tdh", _ORDINAL, lambda found: ordinal(int(found[1].replace(",", "")))),
        ("s", _DECADE, _decade),
        (".", _DOTTED, _dotted),
        ("vV", _VERSION, lambda found: f"version {decimal(found[1])}"),
        ("-", _RANGE, lambda found: f"{number(found[1])} to {number(found[2])}"),
        ("+=\u00d7\u00f7*", _MATH, lambda found: f"{decimal(found[1])} {lex.SYMBOLS[found[2]]} "),
        ("0123456789", _NUMBER, lambda found: _signed(found[1], number(found[2]))),
    )
)


# For each character, the patterns that need it: bit n is the n-th one.
_NEEDED_BY: dict[str, int] = {}
for _index, _rule in enumerate(_NUMERIC):
    for _char in _rule[0]:
        _NEEDED_BY[_char] = _NEEDED_BY.get(_char, 0) | 1 << _index


@lru_cache(maxsize=1024)
def numeric(text: str) -> tuple[int, str] | None:
    """What a group of words begins with that has digits, a sign of a currency or the name of a month."""
    if "," in text:
        text = _EUROPEAN.sub(lambda found: found[0].translate(_SWAPPED), text)
    possible = 0
    for char in set(text):
        possible |= _NEEDED_BY.get(char, 0)
    while possible:
        lowest = possible & -possible
        possible ^= lowest
        _, pattern, read = _NUMERIC[lowest.bit_length() - 1]
        if (found := pattern.match(text)) and (spoken := read(found)):
            return found.end(), spoken
    return None


@lru_cache(maxsize=1024)
def address(text: str) -> tuple[int, str] | None:
    """An e-mail address, a URL, a file's name, a hashtag or a handle."""
    if _ADDRESS_CHARS.isdisjoint(text):
        return None
    if found := _EMAIL.match(text):
        return found.end(), f"{_path(found[1])} at {_path(found[2])}"
    if found := _URL.match(text):
        return found.end(), _path(re.sub(r"^https?://(www\.)?|^www\.", "", found[0]).rstrip("/"))
    if found := _FILE.match(text):
        return found.end(), f"{_path(found[1])} dot {_extension(found[2])}"
    if found := _FOLDERS.match(text):
        return found.end(), _path(found[0])
    if found := _TAGGED.match(text):
        if found[1]:
            return found.end(), f"number {number(found[1]) if found[1].isdigit() else mixed(found[1])}"
        return found.end(), f"{'hashtag' if found[2] == '#' else 'at'} {_path(found[3])}"
    return None


def _extension(text: str) -> str:
    return text if text in ("log", "zip", "go") else mixed(text.upper())


_ADDRESS_CHARS = frozenset("@.#/\\")  # every address has one
_PATH_SIGNS = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", "\\": "backslash", ":": "colon"}
_PATH_SIGNS |= {"?": "question mark", "~": "tilde", "#": "hash"}


def _path(text: str) -> str:
    words: list[str] = []
    for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\w\s]|_", text):
        if part in lex.EXTENSIONS and words and words[-1] == "dot":
            words.append(_extension(part))
        elif part.isdigit():
            words.append(number(part) if len(part) < 5 else digits(part))
        elif part in lex.DOMAINS:
            words.append(lex.DOMAINS[part])
        elif part.isalpha() and (len(part) < 2 or (len(part) < 3 and part not in _SMALL)):
            words.append(letters(part))
        elif part.isalpha():
            words.append(capitals(part) if part.isupper() else part)
        else:
            words.append(_PATH_SIGNS.get(part) or lex.SYMBOLS.get(part, ""))
    return " ".join(filter(None, words))


def mixed(text: str) -> str:
    """A code such as "K7Q-2PX", "H200" or "mp3"."""
    runs = re.findall(r"[A-Za-z]+|\d+|-", text)
    is_code = len([run for run in runs if run != "-"]) > 2
    words = []
    for run in runs:
        if run == "-":
            words.append(",")
        elif run.isdigit():
            words.append(digits(run) if is_code or len(run) > 4 else number(run))
        elif run.isupper() or (len(run) < 3 and run not in _SMALL) or run in ("mp",):
            words.append(letters(run) if is_code or len(run) < 4 else capitals(run))
        else:
            words.append(run)
    return " ".join(words).replace(" ,", "," if is_code else "")


def fallback(text: str) -> str:
    """Anything else: its words, numbers and symbols one by one."""
    if _CAPITALS_APART.fullmatch(text):  # "A/B", "R&D"
        return " ".join(letters(part) if part.isalpha() else "and" if part == "&" else "" for part in text).replace(
            "  ", " "
        )
    if "/" in text and not any(map(str.isdigit, text)):
        text = text.replace("/", "-")  # silent
    return _COMMAS.sub(",", " ".join(filter(None, map(_part, _PARTS.findall(text))))).strip(" ,")


@lru_cache(maxsize=4096)
def _part(text: str) -> str:
    """A word, a number or a symbol."""
    first = text[0]
    if first.isdecimal():
        return number(text)
    if first.isascii() and first.isalpha():
        return capitals(text) if text.isupper() and len(text) > 1 else text
    if (words := lex.FRACTIONS.get(text) or lex.SYMBOLS.get(text)) is not None:
        return words
    if text in ".,;:!?" or text in '()[]{}"':
        return ","
    return text if text.isalnum() else ""


def spelled(text: str) -> str:
    """Letters, digits and signs one by one."""
    return " ".join(filter(None, map(_character, without_accents(text))))


@lru_cache(maxsize=1024)
def _character(char: str) -> str:
    if char.isdecimal():
        return digits(char)
    spoken = lex.LETTERS.get(char.upper()) or _PATH_SIGNS.get(char) or lex.SYMBOLS.get(char)
    return spoken or (char if char.isalnum() else "")


def without_accents(text: str) -> str:
    if text.isascii():
        return text
    special = text.replace("ß", "ss").replace("æ", "ae").replace("ø", "o").replace("œ", "oe").replace("ł", "l")
    special = special.replace("Æ", "Ae").replace("Ø", "O").replace("Ł", "L").replace("ð", "th").replace("þ", "th")
    if not _SYMBOL_CHARS.isdisjoint(special):  # "™" is no "TM", "≠" no "="
        return _NO_SYMBOLS.sub(lambda found: _unaccented(found[0]), special)
    return _unaccented(special)


def _unaccented(text: str) -> str:
    if text.isascii():
        return text
    return "".join([char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char)])


def roman_number(text: str, before: str) -> str | None:
    """A Roman numeral after "Chapter", "King" or a name."""
    word = before.strip(".,;:").lower()
    if word in lex.BEFORE_ROMAN and len(text) > 1 and not set(text) - set("ivx"):
        text = text.upper()  # "scene iv"
    if not text or set(text) - set("IVXLCDM") or (value := roman(text)) is None:
        return None
    if word in lex.REGNAL:
        return f"the {ordinal(value)}"
    if word in lex.BEFORE_ROMAN or (len(text) > 1 and not set(text) - set("IVX") and before[:1].isupper()):
        return cardinal(value)
    return None


initials, code, word_pattern, accented = _INITIALS, _CODE, _WORD, _ACCENTED
