"""The level *spoken* for English: a stage that writes out what is not words, while the text arrives.

The text is read in chunks between white space. A chunk such as "5" may belong to those after it ("5 km"); it waits only
while these can still change how it is read. What is read depends on the whole chunks alone, so on no cut of the text.

Rules of our own, and no library: those for English (NeMo text processing, WeTextProcessing) match whole sentences with
grammars of OpenFst, and cannot release a word while the text arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from oscine.text.english import lexicon as lex
from oscine.text.english import quantities, words
from oscine.text.scanner import NeedMoreText, Piece

_MAX_CHUNK = 128
_MAX_CHUNKS = 6  # after the first one
_TOKEN = re.compile(rf"(\s{{0,64}})(\S{{1,{_MAX_CHUNK}}})|\s{{1,64}}")
_NAME = r"(?:[A-Z][a-z]+|[a-z]+|[AIO])"
_PLAIN = re.compile(
    rf"[\"']*(?:{_NAME}(?:['-]{_NAME})*|[A-Z]'[A-Z][a-z]+|[A-Z]?[a-z]+[A-Z][a-z]+)[\"']*[,;:!?]*[\"']*|[,;:!?\"'.]+"
)
_ENDED = re.compile(rf"[\"']*(?:({_NAME})(?:['-]{_NAME})*|[A-Z]'[A-Z][a-z]+|[A-Z]?[a-z]+[A-Z][a-z]+)\.+[\"']*[,;:!?]*")
_EDGES = re.compile(r"([(\[{\"']*)(.*?)([)\]}\"'.,;:!?]*)\Z", re.DOTALL)
_AREA_CODE = re.compile(r"\((?:\d{3}|0\d{1,4})\)")
# Another number may follow these: a sign, a month, four digits of a card, an area code.
_JOINS = re.compile(
    r"\A[+(]|[^\d\s,]\Z|[A-Za-z][,.]\Z|(?:\A|\s)\d{4}\Z|\A0\d{2,4}\Z|[A-Za-z.]\s\d{1,2}(?:st|nd|rd|th)?,?\Z"
)
_DIGIT = re.compile(r"\d|[½¼¾⅓⅔⅛⅜⅝⅞]")
_DOTTED = frozenset({*lex.DAYS, *lex.TITLES, *lex.ABBREVIATIONS, *lex.BEFORE_NUMBER})
_FOLLOWING = frozenset(
    {*lex.UNITS, *lex.CURRENCIES, "thousand", "million", "billion", "trillion", "am", "pm", "AM", "PM", "a.m", "p.m"}
    | {"of", "in", "x", "×", "-", "+", "=", "c", "sq", "bn", *(name.capitalize() for name in lex.MONTHS)}
)
_BEGINNINGS = frozenset(
    word[:end] for word in (*_FOLLOWING, "a.m.", "p.m.", "A.M.", "P.M.") for end in range(1, len(word) + 1)
)
_STOP_BEFORE_MARK = re.compile(r"\A\.(?=[,;:])")  # "5 min., then"
_SMILEY = re.compile(r"[:;=8][-']?[()DPpOo|*]+|<3")
_NEVER_LAST = frozenset({"vs", "e.g", "i.e", "approx", "cf", "a.k.a", "viz", "ca", "co", "w/o"})  # in a sentence
# After these a capital letter begins a sentence; after others, as after "U.S.", only a word that begins many.
_OFTEN_LAST = frozenset(lex.words_of("etc al esq ave blvd rd hwy ln pkwy ct pl"))
_NAMES_TOO = frozenset(lex.words_of("max min al co app tab art fl rm"))  # with a capital letter also names
_PREFIXES = {
    "~": "about", "≈": "about", "<": "less than", ">": "more than", "<=": "at most", ">=": "at least", "≤": "at most",
    "≥": "at least",
}  # fmt: skip
_PREFIX = re.compile(r"(?:[<>]=|[~≈<>≤≥])(?=[\d.$€£+-])")
_SHOUTED = re.compile(r"([A-Z]+)'([A-Z]+)")
_LETTERS_OF_ROMAN = frozenset("IVXLCDM")
_LAST_UNIT = re.compile(rf"(?:(?<=[\d\s/\"])|(?<=\d-))(?:{'|'.join(lex.DOTTED_UNITS)})\Z")
# A plain word after one of these may be read otherwise: "per kg", "Scene iii", "King James I".
_CHANGES_NEXT = frozenset({"per", *lex.BEFORE_NUMERAL_ONE, *lex.BEFORE_ROMAN, *map(str.capitalize, lex.BEFORE_ROMAN)})
_CONTINUES_SENTENCE = frozenset(
    {*lex.TIMEZONES, *lex.words_of("Eastern Pacific Central Mountain Standard Daylight")}
    | {name.capitalize() for name in lex.MONTHS}
    | {*lex.DAYS.values(), *map(str.capitalize, lex.DAYS)}
)
_TRAIL = ".,;:!?)]}\"'"


class EnglishReader:
    def __init__(self) -> None:
        self._text = ""
        self._before = self._earlier = ""  # the chunk before, and the one before it
        self._quote = ""  # '"' within quotes
        self._said = ""  # the last character of what was said
        self._chunks: dict[int, tuple[int, str | None]] = {}  # of the text so far: start: (end, chunk)

    @property
    def held(self) -> str:
        return self._text

    def push(self, text: str) -> Iterator[Piece]:
        return self._read(text, ended=False)

    def finish(self, following: str = "") -> Iterator[Piece]:
        return self._read("", ended=True, following=following)

    def _read(self, added: str, *, ended: bool, following: str = "") -> Iterator[Piece]:
        text = self._text = self._text + added
        self._chunks.clear()
        at = passed = 0
        match, new = _TOKEN.match, tuple.__new__  # quicker than Piece()
        while found := match(text, at):
            end, chunk = found.end(), found[2]
            if end == len(text) and not ended and (chunk is None or len(chunk) < _MAX_CHUNK):
                break
            if chunk is None:
                self._said = self._before[-1:]
                at = end
                continue
            if _is_plain(chunk) and not (self._before in _CHANGES_NEXT and self._is_changed(chunk)):
                self._earlier, self._before = self._before, chunk
                self._said = chunk[-1]
                if '"' in chunk:
                    self._quotes(chunk)
                at = end
                continue
            start = found.start(2)
            try:
                reading = self._reading(text, start, end, ended=ended, following=following)
            except NeedMoreText:
                break
            if reading is None:
                replaced_end, self._said = end, chunk[-1]
            else:
                replaced_end, spoken = reading
                if replaced_end == len(text) and not following:
                    spoken = spoken.rstrip(",")  # no pause at the end
                if not spoken and start > passed:  # left out with the space before it
                    space = max(at, passed)
                    if space > passed:
                        yield Piece(text[passed:space])
                    yield Piece(text[space:replaced_end], "")
                elif spoken.startswith(",") and start > at and passed <= at:  # a pause belongs to the word before
                    if at > passed:
                        yield Piece(text[passed:at])
                    needs_mark = self._said not in tuple(",;:.!?") and self._before
                    yield Piece(text[at:start], ", " if needs_mark else text[at:start])
                    spoken = spoken[1:].lstrip()
                    if not spoken and text[replaced_end : replaced_end + 1].isspace():
                        replaced_end += 1  # one space is enough
                    yield Piece(text[start:replaced_end], spoken)
                else:
                    if start > passed:
                        yield new(Piece, (text[passed:start], None, 0.0, False))
                    yield new(Piece, (text[start:replaced_end], spoken.lstrip(", "), 0.0, False))
                passed = replaced_end
                self._said = (reading[1] or self._said)[-1:]
            read = chunk if replaced_end == end else text[start:replaced_end]
            self._quotes(read)
            self._earlier, self._before = self._before, chunk if read is chunk else read.split()[-1]
            at = replaced_end
        if ended:
            at = len(text)
        if at > passed:
            yield Piece(text[passed:at])
        self._text = text[at:]

    def _quotes(self, chunk: str) -> None:
        if '"' in chunk and chunk.count('"') % 2:
            self._quote = "" if self._quote else '"'

    def _is_changed(self, chunk: str) -> bool:
        """Whether a plain word is a unit after "per", or a Roman numeral."""
        before, core = self._before, chunk.rstrip(_TRAIL)
        if before == "per":
            return core in lex.UNITS
        if core == "I":
            return before in lex.BEFORE_NUMERAL_ONE or (before.lower() in lex.REGNAL and self._earlier in lex.ROYAL)
        return len(core) > 1 and core.islower() and not set(core) - set("ivx")

    def _reading(self, text: str, start: int, end: int, *, ended: bool, following: str) -> tuple[int, str] | None:
        """The end of what is read together, and how it is spoken, or None if it is spoken as it is written."""
        chunk = text[start:end]
        shape = _shape(chunk)
        before = self._before
        if not shape.looks_back:
            before = _context(before, chunk, self._quote) if shape.may_go_on or ":" in chunk else ""
        if chunk[0] == "-" and not text[start - 1 : start].isspace():
            before = ""  # the end of a word that is read already
        if shape.may_go_on:
            group, beyond, is_whole = self._group(text, start, end, ended=ended, following=following)
            after = _TOKEN.match(text, end)[2] if group > end else beyond  # type: ignore[index]
            if shape.core == "$" and end == len(text):
                after = ""  # `following` is no command after a shell's prompt
            kinds = _Needs(shape, before, text[start:group])
            if not is_whole and kinds.needs_word(beyond):
                raise NeedMoreText
            found = _read(chunk, text[end:group], before, kinds.of(after), kinds.of(beyond))
        else:
            found = _read(chunk, "", before, "", "")
        return found and (start + found[0], found[1])

    def _group(self, text: str, start: int, end: int, *, ended: bool, following: str) -> tuple[int, str, bool]:
        """The end of the chunks that may be read together, the chunk after them, and whether all of that is known."""
        chunks, length = self._chunks, len(text)
        for count in range(_MAX_CHUNKS + 1):
            if end in chunks:
                chunk_end, chunk = chunks[end]
            else:
                found = _TOKEN.match(text, end)
                chunk_end, chunk = chunks[end] = (found.end(), found[2]) if found else (length, None)
            if chunk is None:
                if not ended:
                    raise NeedMoreText
                return end, following.lstrip().partition(" ")[0], True
            is_whole = chunk_end < length or ended or len(chunk) >= _MAX_CHUNK
            if count == _MAX_CHUNKS:
                break
            if chunk[0].isalpha() and not _takes_word(text[start:end], chunk[0]):
                break
            may_follow, follows, needs_joint = _continuation(chunk)
            if not is_whole and may_follow:
                raise NeedMoreText
            if not follows or (text[end - 1] in ".;:!?" and not text[end - 2 : end - 1].isalpha()):
                break
            if needs_joint and not _joins(text[start:end]):
                break
            end = chunk_end
        return end, chunk or "", is_whole


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a chunk is by itself."""

    lead: str  # opening brackets and quotes
    core: str
    trail: str  # marks after it
    is_abbreviated: bool
    is_roman: bool  # or a word in such letters
    may_go_on: bool  # with the chunks after it
    looks_back: bool  # its reading depends on the chunk before it


@lru_cache(maxsize=8192)
def _shape(chunk: str) -> _Shape:
    lead, core, trail = _EDGES.match(chunk).groups()  # type: ignore[union-attr]
    if _AREA_CODE.match(chunk):
        lead, core = "", lead + core
    name = core.lower()
    is_abbreviated = trail.startswith(".") and name in _DOTTED and core not in lex.SPELLED
    is_roman = core.isupper() and not set(core) - _LETTERS_OF_ROMAN
    may_go_on = (
        is_abbreviated
        or is_roman
        or core in lex.UNDOTTED
        or core in (">", "$", "-")
        or core in lex.CURRENCIES
        or name in lex.MONTHS
        or bool(_DIGIT.search(core) or words.initials.match(core + "."))
        or (core.isupper() and trail == "." and len(core) == 1)
    )
    looks_back = (
        is_abbreviated
        or len(core) == 1
        or core in lex.ACRONYMS_AFTER_ARTICLE
        or core in lex.UNDOTTED
        or core in lex.UNITS
        or core[:1] == "-"
        or not set(core.upper()) - _LETTERS_OF_ROMAN
    )
    return _Shape(lead, core, trail, is_abbreviated, is_roman, may_go_on, looks_back)


@lru_cache(maxsize=8192)
def _context(before: str, chunk: str, quote: str) -> str:
    """Stands for all words before a chunk that change its reading alike."""
    shape = _shape(chunk)
    if not shape.may_go_on:
        return "of" if ":" in shape.core and before in ("of", "ratio") else ""
    if (quote or shape.lead) and ("'" in shape.core + shape.trail or '"' in shape.core + shape.trail):
        return quantities.QUOTE
    if before in lex.STATES:
        return quantities.STATE
    lower = before.lower()
    if lower in lex.DETERMINERS:
        return quantities.ATTRIBUTE
    return quantities.CODE if lower in lex.BEFORE_CODE else quantities.DATE if lower in lex.BEFORE_DATE else ""


class _Needs(NamedTuple):
    """The differences that matter between the chunks after a group: few kinds of chunks mean few readings."""

    shape: _Shape
    before: str
    group: str

    def needs_word(self, chunk: str) -> bool:
        """Whether the first character of the chunk is not enough."""
        if chunk[:1].isupper():
            is_title = self.shape.is_abbreviated and self.shape.core.lower() in lex.TITLES
            return (self.group[-1] == "." and not is_title) or self.shape.core in lex.WORDS_TOO
        is_measured = self.before == quantities.ATTRIBUTE and not self.shape.looks_back
        return chunk[:1].islower() and (self.shape.is_roman or is_measured or self.shape.core == "3M")

    def of(self, chunk: str | None) -> str:
        return _kind(chunk) if chunk and self.needs_word(chunk) else _kind((chunk or "")[:1])


@lru_cache(maxsize=8192)
def _kind(chunk: str) -> str:
    """A letter for all words that make no difference: capitals for capitalized words, digits for numbers."""
    first = chunk[:1]
    if len(chunk) < 2:
        return "" if not first else "A" if first.isupper() else "0" if first.isdecimal() else "a"
    word = chunk.rstrip(_TRAIL)
    if first.isupper():
        if word in lex.STARTERS:
            return "S"
        continues = len(word) < 2 or word.isupper() or word in _CONTINUES_SENTENCE
        return "N" if continues else "A"
    if chunk.startswith("centur"):
        return "c"
    is_noun = word.replace("-", "").isalpha() and word not in lex.FUNCTION_WORDS
    return ("p" if word.endswith("s") else "n") if is_noun else "f"


def _stops(after: str, *, often: bool = False) -> bool:
    """Whether an abbreviation's full stop ends a sentence before a word of this kind."""
    return not after or after == "S" or (often and after == "A")


@lru_cache(maxsize=4096)
def _read(chunk: str, more: str, before: str, after: str, beyond: str) -> tuple[int, str] | None:
    """Reads a chunk and those that may belong to it. Returns how many characters are read, and how they are spoken."""
    shape = _shape(chunk)
    lead, core, trail = shape.lead, shape.core, shape.trail
    at, end = len(lead), len(chunk)
    if _SMILEY.fullmatch(chunk):
        return end, ""
    quotes = lead.translate(_NO_BRACKETS)
    if quotes == "'" and core[:1].isdecimal() and "'" not in trail:
        quotes = ""  # "'60s"
    pause = ("," if len(quotes) < len(lead.replace("'", "") if not quotes else lead) else "") + quotes
    reading = _Reading(shape, before, after, beyond)
    if found := reading.of((chunk + more)[at:]):
        length, spoken = found
        finish = at + length
        rest_end = _REST_OF_CHUNK.match(chunk + more, finish).end()  # type: ignore[union-attr]
        tail = _STOP_BEFORE_MARK.sub("", (chunk + more)[finish:rest_end])
        if finish > end and not tail.strip(_TRAIL):
            rest_end, tail = finish, ""  # marks after the group are read by themselves
        if tail and any(char not in _TRAIL for char in tail):
            inner = tail.lstrip("-")
            if inner and words.word_pattern.fullmatch(inner.rstrip(_TRAIL)):
                tail = ("-" if tail[0] == "-" else " ") + inner
            else:
                tail = " " + words.fallback(tail) + tail[len(tail.rstrip(".,;:!?")) :]
        return rest_end, pause + spoken + (_marks(tail) if tail else "")
    if lead.strip("\"'") or trail.strip("\"'.,;:!?"):
        inner = core if _PLAIN.fullmatch(core) else words.fallback(core)
        return end, pause + inner + _marks(trail)
    return None


_REST_OF_CHUNK = re.compile(r"\S*")
_NO_BRACKETS = str.maketrans("", "", "([{")


@dataclass(frozen=True, slots=True)
class _Reading:
    """The chunk that is read, between what is before it and the kinds of chunks after it."""

    shape: _Shape
    before: str
    after: str  # kind of the chunk after it
    beyond: str  # and after the group

    def of(self, group: str) -> tuple[int, str] | None:
        """How many characters are read, and how they are spoken. `group` begins with the chunk's core and trail."""
        core, trail = self.shape.core, self.shape.trail
        if not core:
            return None
        name = core.lower()
        if core in lex.EXACT:
            return len(core), lex.EXACT[core]
        if (self.shape.is_abbreviated or core in lex.UNDOTTED) and (found := self._abbreviated(group, name)):
            return found
        if name in ("e.g", "i.e") and trail.startswith("."):
            return len(core) + 1, lex.ABBREVIATIONS[name]
        if name in lex.SHORTHANDS and core[1:].islower() and not (self.before == "per" and core in lex.UNITS):
            return len(core), lex.SHORTHANDS[name]
        if "-" in core and (spoken := self._hyphenated(core)) is not None:
            return len(core), spoken
        if words.initials.fullmatch(core + ".") and trail.startswith(".") and "." in core:
            is_last = _stops(self.after) and trail[1:2] not in tuple(",;:!?")
            return len(core) + 1, words.letters(core.replace(".", "")) + ("." if is_last else "")
        if core.endswith("'s") and words.initials.fullmatch(core[:-2]):
            return len(core), words.letters(core[:-2].replace(".", "")) + "'s"
        if (prefix := _PREFIX.match(core)) and (found := quantities.numeric(group[prefix.end() :], self.before)):
            return found[0] + prefix.end(), f"{_PREFIXES[prefix[0]]} {found[1]}"
        found = words.address(group)
        if found is None and (_DIGIT.search(core) or core in lex.CURRENCIES or name in lex.MONTHS):
            found = self._number(group)
        if found is not None:
            return found
        is_century = self.after == "c"
        if (spoken := words.roman_number(core, self.before, is_century=is_century)) is not None:
            return len(core), spoken
        return self._word()

    def _abbreviated(self, group: str, name: str) -> tuple[int, str] | None:
        core, trail, after = self.shape.core, self.shape.trail, self.after
        has_stop = self.shape.is_abbreviated
        if has_stop and name in lex.MONTHS and (dated := quantities.numeric(group)):
            return dated
        spoken = self._abbreviation(name) if has_stop else self._undotted(name)
        if spoken is None:
            return None
        is_never_last = name in _NEVER_LAST or name in lex.TITLES or name in lex.BEFORE_NUMBER
        ends = not after or (not is_never_last and _stops(after, often=name in _OFTEN_LAST))
        is_marked = any(char in ".,;:!?" for char in trail[1:])
        return len(core) + has_stop, spoken + ("." if has_stop and ends and not is_marked else "")

    def _number(self, group: str) -> tuple[int, str] | None:
        core, beyond = self.shape.core, self.beyond
        if core == "3M" and self.after in ("A", "N", "n"):
            return len(core), "three em"
        found = quantities.numeric(group, self.before)
        if found is None and words.code.fullmatch(core):
            found = len(core), words.mixed(core)
        if found is None:
            return None
        length, spoken = found
        rest = group[length:].lstrip(". ")
        following = _kind(rest[0]) if rest else beyond
        if self.before == quantities.ATTRIBUTE and following in ("n", "p"):
            spoken = quantities.as_attribute(spoken)
        if _STOP_BEFORE_MARK.match(group[length:]) or (
            group[length : length + 1] == "." and _LAST_UNIT.search(group[:length]) and not _stops(following)
        ):
            length += 1
        elif group[length - 1] == "." and _stops(following):
            spoken += "."  # of "p.m." at the end of a sentence
        return length, spoken

    def _word(self) -> tuple[int, str] | None:
        core, trail, after = self.shape.core, self.shape.trail, self.after
        if self.before == "per" and core in lex.UNITS:
            return len(core), lex.UNITS[core][0]
        if core in lex.ACRONYMS_AFTER_ARTICLE and self.before.lower() in lex.ARTICLES:
            return len(core), words.letters(core)
        is_initial = len(core) == 1 and trail == "." and after in ("A", "N") and core.isalpha()
        if core.isascii() and core.isalpha():
            if core.isupper() and (len(core) > 1 or core not in "AIO" or (is_initial and core != "I")):
                length = len(core) + is_initial  # "J. Doe"
                return length, words.capitals(core) if len(core) > 1 else words.letters(core)
            stem = core[:-1]
            if core[-1] == "s" and len(stem) > 1 and stem.isupper():
                return len(core), words.capitals(core)
            if words.is_unsayable(core):
                return len(core), words.letters(core)
            return (len(core), spoken) if (spoken := words.cased(core)) != core else None
        if core.endswith("'s") and core[:-2].isupper() and core[:-2].isalpha():
            stem = core[:-2]
            return len(core), (words.capitals(stem) if len(stem) > 1 else words.letters(stem)) + "'s"
        if shouted := _SHOUTED.fullmatch(core):
            return len(core), words.unshouted(*shouted.groups())
        if _PLAIN.fullmatch(core):
            return None
        if core == "-":
            return 1, "minus" if _DIGIT.search(self.before) and after == "0" else ","
        if core == "/":
            return 1, ","
        if core in lex.UNITS and "/" in core:
            return len(core), lex.UNITS[core][1]
        if self.before and _FLAG.fullmatch(core):
            return len(core), f"{'dash ' * (len(core) - len(core.lstrip('-')))}{words.fallback(core.lstrip('-'))}"
        if core == ">" and self.before[:1].isupper() and after.isupper():
            return 1, ","  # "Settings > General"
        if core == "$" and after.islower() and not self.before.rstrip(_TRAIL).isalnum():
            return 1, ""  # of a shell's prompt
        folded = words.without_accents(core)
        if folded != core and _PLAIN.fullmatch(folded):
            return len(core), folded
        if all(part.isalpha() for part in core.split("-")) and folded.isascii() and "-" in core:
            return len(core), "-".join(
                words.capitals(part) if part.isupper() and part not in "AIO" else part for part in folded.split("-")
            )
        if self.before == "of" and _RATIO.fullmatch(core):
            return len(core), core.replace(":", " to ")
        spoken = words.with_pauses(folded)
        return len(core), spoken.removesuffix(",") if trail and trail[0] in ".,;:!?)]}" else spoken

    @staticmethod
    def _hyphenated(core: str) -> str | None:
        """Reads "Mon-Fri" and "mid-1980s"."""
        first, _, last = core.partition("-")
        if _is_period(core):
            return f"{lex.PERIODS[first.lower()]} to {lex.PERIODS[last.lower()]}"
        last = last.lstrip("'")
        if first.isalpha() and first.islower() and last[:1].isdigit() and (found := quantities.numeric(last)):
            return f"{first} {found[1]}" if found[0] == len(last) else None
        return None

    def _undotted(self, name: str) -> str | None:
        """Reads "Dr" or "Sat", which need no full stop."""
        core = self.shape.core
        if core in lex.WORDS_TOO and self.after not in ("0", "N") and not self.shape.trail.startswith(":"):
            return None
        if name in lex.AFTER_NAME and not self._precedes_name(name):
            return lex.AFTER_NAME[name]
        return lex.UNDOTTED[core]

    def _abbreviation(self, name: str) -> str | None:
        core, after = self.shape.core, self.after
        if name in lex.BEFORE_NUMBER and after.isdigit() and core != "C":
            return lex.BEFORE_NUMBER[name]
        if name in lex.AFTER_NAME and not self._precedes_name(name):
            return lex.AFTER_NAME[name]
        if name in lex.DAYS:
            is_day = core[0].isupper() and (self.shape.trail[1:] or not after.isupper() or after == "N")
            return lex.DAYS[name] if is_day else None
        if name in lex.TITLES:
            return lex.TITLES[name]
        if name == "v":
            return "versus" if self.before[:1].isupper() and after.isupper() else None
        if name == "may" or (name in _NAMES_TOO and core[0].isupper() and not (after.islower() or after.isdigit())):
            return None
        return lex.ABBREVIATIONS.get(name)

    def _precedes_name(self, name: str) -> bool:
        """Whether "St." is a saint and "Dr." a doctor, not a street and a drive."""
        trail, before = self.shape.trail, self.before
        if not self.after.isupper() or trail.removeprefix(".")[:1] in tuple(",;:!?"):
            return False
        follows_name = before[:1].isdigit() or (before[:1].isupper() and before[-1].isalnum() and len(before) > 3)
        return not follows_name or before.endswith(",") or name in ("dr", "mt")


_SPELLED_NAMES = ("A's", "I's", "O's")
_FLAG = re.compile(r"-{1,2}[A-Za-z][\w-]*")  # of a command
_RATIO = re.compile(r"[a-z]{2,}:[a-z]{2,}")


def ends_sentence(chunk: str) -> bool:
    """Whether the chunk is a plain word with the mark of a sentence's end."""
    return bool(_PLAIN.fullmatch(chunk) and chunk.rstrip("\"'").endswith(("!", "?"))) or _is_sentence_end(chunk)


def _is_period(text: str) -> bool:
    """Whether it is such as "Mon-Fri"."""
    first, _, last = text.partition("-")
    return first[:1].isupper() and first.lower() in lex.PERIODS and last.lower() in lex.PERIODS


@lru_cache(maxsize=8192)
def _is_plain(chunk: str) -> bool:
    if chunk.isascii() and chunk.isalpha() and chunk[0].isupper() and chunk.lower() in lex.MONTHS:
        return False  # a day may follow
    core = chunk.strip(_TRAIL)
    if core.lower() in lex.SHORTHANDS or core in lex.UNDOTTED or core in _SPELLED_NAMES or words.is_unsayable(core):
        return False
    if "-" in chunk and _is_period(core):
        return False
    if core.isalpha() and not core.islower() and words.cased(core) != core:
        return False  # "NaCl"
    return bool(_PLAIN.fullmatch(chunk)) or _is_sentence_end(chunk)


def _is_sentence_end(chunk: str) -> bool:
    """A plain word and a full stop that is not an abbreviation."""
    found = _ENDED.fullmatch(chunk)
    return bool(found) and (found[1] or "").lower() not in _DOTTED and len(found[1] or "  ") > 1  # type: ignore[index]


class _Continuation(NamedTuple):
    """How a chunk belongs to the group before it."""

    may_follow: bool  # once it is complete
    follows: bool
    needs_joint: bool  # a number, which follows only some groups


@lru_cache(maxsize=8192)
def _continuation(chunk: str) -> _Continuation:
    whole_word = chunk.rstrip(_TRAIL)
    word = whole_word if whole_word in _FOLLOWING else whole_word.partition("/")[0]  # "5 GB/day"
    follows = (
        bool(_DIGIT.match(chunk.lstrip("(-")))
        or word in _FOLLOWING
        or (chunk[0] in "(½¼¾⅓⅔⅛⅜⅝⅞" and chunk[1:2].isdigit())
    )
    may_follow = follows or chunk in _BEGINNINGS or word in _BEGINNINGS
    return _Continuation(may_follow, follows, chunk[0].isdigit() and "/" not in chunk)


@lru_cache(maxsize=8192)
def _takes_word(group: str, first: str) -> bool:
    """Whether a word may follow that begins so: a unit or a month follows a number only, and after a unit just "x"."""
    if not _DIGIT.search(group):
        return False
    chunks = group.split()
    return len(chunks) == 1 or first == "x" or chunks[-1].rstrip(_TRAIL) not in lex.UNITS


@lru_cache(maxsize=8192)
def _joins(group: str) -> bool:
    return bool(_JOINS.search(group))


def _marks(trail: str) -> str:
    """Closing brackets are pauses."""
    marks = re.sub(r"[)\]}]+(?=[.,;:!?])|[\[\](){}]+\Z(?<=^)", "", trail)
    return re.sub(r"[)\]}]+", ",", marks)
