"""Words of an English text that are not spoken as they are written: acronyms, codes, addresses, symbols, letters."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from oscine.text.english import lexicon as lex
from oscine.text.english.numbers import SUPERSCRIPTS, cardinal, digits, number, ordinal, power, roman

_EMAIL = re.compile(r"(?:mailto:)?([\w.+-]+)@([\w-]+(?:\.[\w-]+)+)")
_URL = re.compile(
    r"(?:https?://|www\.)[^\s]*[\w/]|(?:[A-Za-z0-9-]+\.)+(?:com|org|net|io|gov|edu|info|dev|app|ai|co\.uk)(?:/[\w./?=&#%+-]*[\w/])?(?!\w)"
)
_DOI = re.compile(r"(?i:doi):\s?(10\.\d{3,9}/[\w.()/;:-]*\w)")
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
_SMALL = frozenset(
    lex.words_of(
        """a an am as at be by do go he hi if in is it me my no of oh on or so to up us we act add age ago aid aim
    air all and any ape apt are arm art ask ate awe bad bag ban bar bat bay bed bee beg bet bid big bin bit boo bow
    box boy bud bug bun bus but buy bye cab can cap car cat cow cry cup cut dad dam day den did die dig dim dip dog
    dot dry due dug ear eat egg ego elf end era eve eye fan far fat fee few fig fin fit fix fly fog for fox fun fur
    gap gas get god got gum gun gut guy gym had ham has hat hay hen her hey hid him hip his hit hog hop hot how hug
    hut ice ill ink inn its jam jar jaw jet job jog joy jug key kid kit lab lad lap law lay leg let lid lie lip lit
    log lot low mad man map mat max may men met mix mob mom mud mug nap net new nod nor not now nun nut oak odd off
    oil old one our out owe owl own pad pal pan pat paw pay pea pen pet pie pig pit pop pot pro pub put rag ran rat
    raw red rib rid rob rod rot row rub rug run rut sad saw say sea see set she shy sin sip sit six ski sky sly sob
    son soy spy sub sue sum sun tag tan tap tax ten the tie tip toe ton too top toy try tub tug two urn use van vow
    wag war was wax way web wed wet who why wig win wit wow yam yep yes yet you zoo"""
    )
)

# How words begin and end in English: what has other consonants is spelled, as in "NYPD" and "AAPL".
_ONSETS = frozenset(
    lex.words_of(
        """b bl br c ch chr cl cr d dr dw f fl fr g gh gl gn gr h j k kl kn kr l m n p ph phl phr pl pn pr ps q r rh s
    sc sch scr sh shr sk sl sm sn sp sph spl spr sq st str sv sw t th thr tr ts tw v w wh wr x z"""
    )
) | {""}
_CODAS = frozenset(
    lex.words_of(
        """b bt c ch ck ct d dd dth f ff ft fth g gg gh ght gn h hn k l lb ld lf lk ll lm lp lt lth m mb mn mp mpt n nc
    nch nd ng nk nn nt nth nx p ph pp pt pth q r rb rc rch rd rf rg rk rl rld rm rn rp rr rsh rst rt rth rtz rv sh sk sm
    sp ss st t tch th tt tz v w wd wk wl wn x xt xth z zz"""
    )
) | {"", "s"}
_CLUSTERS = re.compile(r"[aeiou]+|y(?![aeiou])|[^aeiou]+?(?=y(?![aeiou])|[aeiou]|$)")
_ODD_VOWELS = re.compile(r"aa|ii|uu|(?<!q)[aeiou]{4}|eee|(?<!q)uo")
_UNSAYABLE = re.compile(r"[bcdfghjklmnpqrstvwxz]{5}|^[bcdfghjklmnpqrstvwxz]{4}")
_MAX_ACRONYM = 5  # letters; longer ones are words in capitals


def letters(text: str) -> str:
    return " ".join([lex.LETTERS.get(char, char) for char in text.upper()])


def _is_sayable(word: str) -> bool:
    """Whether a word in lower case sounds like English."""
    if _ODD_VOWELS.search(word):
        return False
    parts = _CLUSTERS.findall(word)
    sounds = [part for part in parts if part[0] in "aeiouy"]
    if not sounds or "".join(parts) != word:
        return False
    for index, part in enumerate(parts):
        if part[0] in "aeiou" or part == "y":
            continue
        if index == 0:
            is_usual = part in _ONSETS or part == "y"
        elif index == len(parts) - 1:
            is_usual = part.removesuffix("s") in _CODAS
        else:
            is_usual = any(part[:cut] in _CODAS and part[cut:] in _ONSETS for cut in range(len(part) + 1))
        if not is_usual:
            return False
    return True


@lru_cache(maxsize=4096)
def capitals(word: str) -> str:
    """A word in capitals: as a word if it is one, or else by its letters."""
    stem, ending = (word[:-1], "s") if word.endswith("s") and len(word) > 2 else (word, "")
    if stem in lex.SPOKEN_ACRONYMS:
        return lex.SPOKEN_ACRONYMS[stem] + ending
    lower = stem.lower()
    is_word = lower in _SMALL or (
        stem not in lex.SPELLED
        and len(stem) > 3
        and (_is_sayable(lower) if len(stem) <= _MAX_ACRONYM else _is_long(lower))
    )
    if is_word:
        return lower + ending
    return letters(stem) + ("'s" if ending else "")


def _is_long(word: str) -> bool:
    return any(char in "aeiouy" for char in word) and not _UNSAYABLE.search(word)


def cased(word: str) -> str:
    """A word with letters of both cases, such as "mRNA", "OpenAI" or "NaCl"."""
    if word in lex.EXACT:
        return lex.EXACT[word]
    symbols = _SYMBOLS_OF_FORMULA.findall(word)
    if len(symbols) > 1 and "".join(symbols) == word and any(len(one) > 1 for one in symbols) and word not in _NAMES:
        return letters(word)
    if not _CAPITAL_RUN.search(word):
        return word
    parts = _CAMEL.findall(word)
    spoken = [capitals(part) if part.isupper() and len(part) > 1 else _tail(part) for part in parts]
    return " ".join(spoken)


def _tail(part: str) -> str:
    return letters(part) if len(part) < 2 or (part.islower() and not _is_long(part)) else part


_NAMES = frozenset(lex.words_of("CoCo BoB PoP"))
_SYMBOLS_OF_FORMULA = re.compile("|".join(sorted(lex.ELEMENTS, key=len, reverse=True)))
_CAPITAL_RUN = re.compile(r"[A-Z]{2}")
_CAMEL = re.compile(r"[A-Z]+s(?![a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@lru_cache(maxsize=1024)
def address(text: str) -> tuple[int, str] | None:
    """An e-mail address, a URL, a file's name, a hashtag or a handle."""
    if _ADDRESS_CHARS.isdisjoint(text):
        return None
    if found := _EMAIL.match(text):
        return found.end(), f"{_path(found[1])} at {_path(found[2])}"
    if found := _URL.match(text):
        return found.end(), _path(re.sub(r"^https?://(www\.)?|^www\.", "", found[0]).rstrip("/"))
    if found := _DOI.match(text):
        return found.end(), f"{letters('DOI')}, {_path(found[1])}"
    if found := _FILE.match(text):
        return found.end(), f"{_path(found[1])} dot {_extension(found[2])}"
    if found := _FOLDERS.match(text):
        return found.end(), _path(found[0])
    if found := _TAGGED.match(text):
        if found[1]:
            return found.end(), f"number {number(found[1]) if found[1].isdecimal() else mixed(found[1])}"
        return found.end(), f"{'hashtag' if found[2] == '#' else 'at'} {_path(found[3])}"
    return None


def _extension(text: str) -> str:
    return text if text in ("log", "zip", "go") else mixed(text.upper())


_ADDRESS_CHARS = frozenset("@.#/\\")  # every address has one
_PATH_SIGNS = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", "\\": "backslash", ":": "colon"}
_PATH_SIGNS |= {"?": "question mark", "~": "tilde", "#": "hash"}


def _path(text: str) -> str:
    words: list[str] = []
    for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_A-Za-z]+|[^\w\s]|_", text):
        if part in lex.EXTENSIONS and words and words[-1] == "dot":
            words.append(_extension(part))
        elif part.isdecimal():
            words.append(number(part) if len(part) < 5 else digits(part))
        elif part in lex.DOMAINS:
            words.append(lex.DOMAINS[part])
        elif part.isalpha() and (len(part) < 2 or (len(part) < 3 and part.lower() not in _SMALL)):
            words.append(letters(part))
        elif part.isalpha():
            words.append(capitals(part) if part.isupper() else part)
        else:
            words.append(part if len(part) > 1 else _PATH_SIGNS.get(part) or sign(part))
    return " ".join(filter(None, words))


def mixed(text: str) -> str:
    """A code such as "K7Q-2PX", "H200" or "mp3"."""
    runs = re.findall(r"[A-Za-z]+|\d+|-", text)
    is_code = len([run for run in runs if run != "-"]) > 2
    words = []
    for run in runs:
        if run == "-":
            words.append(",")
        elif run.isdecimal():
            words.append(digits(run) if is_code or len(run) > 4 else number(run))
        elif run.isupper() or (len(run) < 3 and run not in _SMALL) or run in ("mp",):
            words.append(letters(run) if is_code or len(run) < 4 else capitals(run))
        elif run.isalpha() and run.islower() and not _is_long(run):
            words.append(letters(run))
        else:
            words.append(cased(run))
    return " ".join(words).replace(" ,", "," if is_code else "")


def fallback(text: str) -> str:
    """Anything else: its words, numbers and symbols one by one, without pauses at its ends."""
    return with_pauses(text).strip(" ,")


def with_pauses(text: str) -> str:
    if _CAPITALS_APART.fullmatch(text):  # "A/B", "R&D", "M&Ms"
        ending = "s" if text[-1] == "s" else ""
        spoken = [letters(part) if part.isalpha() else "and" for part in text.removesuffix("s") if part != "/"]
        return " ".join(spoken) + ending
    if found := _GRADE.fullmatch(text):  # "B+"
        return f"{letters(found[1])} {'plus' if found[2] == '+' else 'minus'}" + ("es" if found[3] else "")
    if "/" in text and not any(map(str.isdigit, text)):
        text = _SILENT_SLASH.sub("-", text)
    if "." in text:
        text = _INNER_STOP.sub(" dot ", text)
    if "$" in text:
        text = _FORMULA.sub("", text)
    parts = [_part(found[0]) for found in _PARTS.finditer(text)]
    return _COMMAS.sub(",", " ".join(filter(None, parts))).strip()


_CAPITALS_APART = re.compile(r"[A-Z](?:[/&][A-Z])+s?")
_GRADE = re.compile(r"([A-F])([+-])('?s)?")
_INNER_STOP = re.compile(r"(?<=\w)\.(?=[a-z])")
_FORMULA = re.compile(r"\A\$(?=[A-Za-z\\])|(?<=[\w)}])\$\Z")  # "$E = mc^2$"
_SILENT_SLASH = re.compile(r"(?<=[^\W_])/(?=[^\W_])")
_LETTERS = rf"[^\W\d_{SUPERSCRIPTS}{''.join(lex.FRACTIONS)}]"
_PARTS = re.compile(
    rf"{_LETTERS}+(?:'{_LETTERS}+)*|\d+(?:\.\d+)?|\^-?\d+|[{SUPERSCRIPTS}]+|[=!<>]==?|\+=|-=|\+\+|&&|"
    r"::|//|\|\||(?:([$=&%<>^~#@])\1+)|.",
    re.DOTALL,
)
_GREEK = re.compile(r"GREEK (?:SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)")
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]+")
_COMMAS = re.compile(r"(?: ?,)+")


@lru_cache(maxsize=4096)
def _part(text: str) -> str:
    """A word, a number or a symbol."""
    first = text[0]
    if first.isdecimal():
        return number(text)
    if first == "^" or first in SUPERSCRIPTS:
        return power(text) or sign(first)
    if first.isascii() and first.isalpha():
        return _word(text)
    if text in lex.OPERATORS:
        return lex.OPERATORS[text]
    if len(text) > 1 and text[0].isalpha():
        return text
    return sign(first)  # "$$$" is read once


def _word(text: str) -> str:
    if text in lex.EXACT:
        return lex.EXACT[text]
    if not text.islower() and text.lower() in lex.KEYS:
        return lex.KEYS[text.lower()]
    if text.isupper():
        return capitals(text) if len(text) > 1 else letters(text)
    if text.islower():
        return lex.SHORTHANDS.get(text) or (letters(text) if is_unsayable(text) else text)
    return cased(text) if text.isalpha() else text


def is_unsayable(word: str) -> bool:
    """Whether a word in lower case has no vowel, as in "npm"."""
    return len(word) > 1 and _CONSONANTS.fullmatch(word) is not None and word not in lex.INTERJECTIONS


@lru_cache(maxsize=1024)
def sign(char: str) -> str:
    """A sign or letter that stands alone. Most marks are pauses, a symbol without a reading has its Unicode name."""
    if (words := lex.FRACTIONS.get(char) or lex.SYMBOLS.get(char)) is not None:
        return words
    if char.isalnum():
        name = unicodedata.name(char, "")
        return (
            name.partition(" WITH")[0].split()[-1].lower() if name.startswith("GREEK") and " LETTER " in name else char
        )
    if is_silent(char):
        return ""
    if unicodedata.category(char)[0] == "S":
        return unicodedata.name(char, "").lower().removesuffix(" sign")
    return "," if unicodedata.category(char)[0] == "P" else ""


def is_silent(char: str) -> bool:
    """Whether a sign alone has no reading: quotes, hyphens, accents without a letter, drawings."""
    category = unicodedata.category(char)
    return category in ("Pd", "Pi", "Pf", "Pc", "Sk") or char in lex.SILENT or "\u2500" <= char <= "\u25ff"


def unshouted(stem: str, ending: str) -> str:
    """Reads "I'M", "DON'T" and "FBI'S"."""
    if len(ending) > 2:
        return f"{stem}'{ending.capitalize()}"  # "O'NEIL"
    if stem == "I":
        return f"I'{ending.lower()}"
    return f"{capitals(stem) if ending == 'S' else stem.lower()}'{ending.lower()}"


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


def roman_number(text: str, before: str, *, is_century: bool = False) -> str | None:
    """A Roman numeral after "Chapter", "King" or a name."""
    word = before.strip(".,;:").lower()
    if word in lex.BEFORE_ROMAN and text.islower() and len(text) > 1 and not set(text) - set("ivx"):
        text = text.upper()  # "scene iv"
    if not text or set(text) - set("IVXLCDM") or (value := roman(text)) is None:
        return None
    if is_century:
        return ordinal(value)
    if word in lex.REGNAL:
        return f"the {ordinal(value)}"
    if word in lex.BEFORE_ROMAN or (len(text) > 1 and not set(text) - set("IVX") and before[:1].isupper()):
        return cardinal(value)
    return None


initials, code, word_pattern = _INITIALS, _CODE, _WORD
