"""The level *spoken* for English: a stage that writes out what is not words, while the text arrives.

The text is read in chunks between white space. A chunk such as "5" may belong to those after it ("5 km"); it waits only
while these can still change how it is read. What is read depends on the whole chunks alone, so on no cut of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from oscine.text.english import lexicon as lex
from oscine.text.english import words
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
_AREA_CODE = re.compile(r"\(\d{3}\)")
# Another number may follow these: a sign, a month, four digits of a card, an area code.
_JOINS = re.compile(
    r"\A[+(]|[^\d\s,]\Z|[A-Za-z][,.]\Z|(?:\A|\s)\d{4}\Z|\A0\d{2,4}\Z|[A-Za-z.]\s\d{1,2}(?:st|nd|rd|th)?,?\Z"
)
_DIGIT = re.compile(r"\d|[½¼¾⅓⅔⅛⅜⅝⅞]")
_DOTTED = frozenset({*lex.DAYS, *lex.TITLES, *lex.ABBREVIATIONS, *lex.BEFORE_NUMBER})
_FOLLOWING = frozenset(
    {*lex.UNITS, *lex.CURRENCIES, "thousand", "million", "billion", "trillion", "am", "pm", "AM", "PM", "a.m", "p.m"}
    | {"of", "in", "x", "×", "-", "bn", *(name.capitalize() for name in lex.MONTHS)}
)
_BEGINNINGS = frozenset(
    word[:end] for word in (*_FOLLOWING, "a.m.", "p.m.", "A.M.", "P.M.") for end in range(1, len(word) + 1)
)
_STOP_BEFORE_MARK = re.compile(r"\A\.(?=[,;:])")  # "5 min., then"
_SMILEY = re.compile(r"[:;=8][-']?[()DPpOo|*]+|<3")
_NEVER_LAST = frozenset({"vs", "e.g", "i.e", "approx", "cf", "a.k.a", "viz", "ca", "co", "w/o"})  # in a sentence
_TRAIL = ".,;:!?)]}\"'"


class EnglishReader:
    def __init__(self) -> None:
        self._text = ""
        self._before = ""  # the chunk before
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
            if _is_plain(chunk) and not (chunk[0] == "I" and self._is_numeral(chunk)):
                self._before = chunk
                self._said = chunk[-1]
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
                    yield Piece(text[start:replaced_end], spoken[1:].lstrip())
                else:
                    if start > passed:
                        yield new(Piece, (text[passed:start], None, 0.0, False))
                    yield new(Piece, (text[start:replaced_end], spoken.lstrip(", "), 0.0, False))
                passed = replaced_end
                self._said = (reading[1] or self._said)[-1:]
            self._before = chunk if replaced_end == end else text[start:replaced_end].split()[-1]
            at = replaced_end
        if ended:
            at = len(text)
        if at > passed:
            yield Piece(text[passed:at])
        self._text = text[at:]

    def _is_numeral(self, chunk: str) -> bool:
        """Whether it is the "I" of "World War I"."""
        before = self._before
        return chunk.rstrip(_TRAIL) == "I" and before in lex.BEFORE_NUMERAL_ONE

    def _reading(self, text: str, start: int, end: int, *, ended: bool, following: str) -> tuple[int, str] | None:
        """The end of what is read together, and how it is spoken. None: as it is written."""
        chunk = text[start:end]
        shape = _shape(chunk)
        before = self._before if shape.looks_back else ""
        if shape.may_go_on:
            group, beyond = self._group(text, start, end, ended=ended, following=following)
            after = text[end:group].lstrip()[:1] if group > end else beyond
            found = _read(chunk, text[end:group], before, _kind(after), _kind(beyond))
        else:
            found = _read(chunk, "", before, "", "")
        return found and (start + found[0], found[1])

    def _group(self, text: str, start: int, end: int, *, ended: bool, following: str) -> tuple[int, str]:
        """The end of the chunks that may be read together, and the first character after them."""
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
                return end, following.lstrip()[:1]
            if count == _MAX_CHUNKS:
                break
            may_follow, follows, needs_joint = _continuation(chunk)
            if chunk_end == length and not ended and may_follow and len(chunk) < _MAX_CHUNK:
                raise NeedMoreText
            if not follows or (text[end - 1] in ".;:!?" and not text[end - 2 : end - 1].isalpha()):
                break
            if needs_joint and not _joins(text[start:end]):
                break
            end = chunk_end
        return end, chunk[0] if chunk else ""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a chunk is by itself."""

    lead: str  # opening brackets and quotes
    core: str
    trail: str  # marks after it
    is_abbreviated: bool
    may_go_on: bool  # with the chunks after it
    looks_back: bool  # its reading depends on the chunk before it


@lru_cache(maxsize=8192)
def _shape(chunk: str) -> _Shape:
    lead, core, trail = _EDGES.match(chunk).groups()  # type: ignore[union-attr]
    if _AREA_CODE.match(chunk):
        lead, core = "", lead + core
    name = core.lower()
    is_abbreviated = trail.startswith(".") and name in _DOTTED
    may_go_on = (
        is_abbreviated
        or core in lex.CURRENCIES
        or name in lex.MONTHS
        or bool(_DIGIT.search(core) or words.initials.match(core + "."))
        or (core.isupper() and trail == "." and len(core) == 1)
    )
    looks_back = (
        is_abbreviated or len(core) == 1 or core in lex.ACRONYMS_AFTER_ARTICLE or not set(core.upper()) - set("IVXLCDM")
    )
    return _Shape(lead, core, trail, is_abbreviated, may_go_on, looks_back)


@lru_cache(maxsize=64)
def _kind(char: str) -> str:
    """Stands for all characters that make no difference before it: few kinds mean few readings."""
    return "" if not char else "A" if char.isupper() else "0" if char.isdigit() else "a"


@lru_cache(maxsize=4096)
def _read(chunk: str, more: str, before: str, after: str, beyond: str) -> tuple[int, str] | None:
    """Reads a chunk and those that may belong to it. Returns how many characters are read, and how they are spoken."""
    shape = _shape(chunk)
    lead, core, trail = shape.lead, shape.core, shape.trail
    pause = "," if "(" in lead or "[" in lead else ""
    at, end = len(lead), len(chunk)
    if _SMILEY.fullmatch(chunk):
        return end, ""
    reading = _Reading(core, trail, before, after, beyond, shape.is_abbreviated)
    if found := reading.of((chunk + more)[at:]):
        length, spoken = found
        finish = at + length
        rest_end = max(finish, end)
        tail = _STOP_BEFORE_MARK.sub("", chunk[finish:]) if rest_end > finish else ""
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


@dataclass(frozen=True, slots=True)
class _Reading:
    """The chunk that is read, between the chunk before it and the kinds of characters after it."""

    core: str
    trail: str
    before: str
    after: str  # kind of the first character after the chunk
    beyond: str  # and after the group
    is_abbreviated: bool

    def of(self, group: str) -> tuple[int, str] | None:
        """How many characters are read, and how they are spoken. `group` begins with `core` and `trail`."""
        core, trail, after, beyond = self.core, self.trail, self.after, self.beyond
        abbreviated = self.is_abbreviated
        if not core:
            return None
        name = core.lower()
        if core in lex.EXACT:
            return len(core), lex.EXACT[core]
        if abbreviated and name in lex.MONTHS and (dated := words.numeric(group)):
            return dated
        if abbreviated and (spoken := self._abbreviation(name, after)) is not None:
            ends = (
                "."
                if not after or (after.isupper() and not {name} & {*lex.TITLES, *lex.BEFORE_NUMBER, *_NEVER_LAST})
                else ""
            )
            ends = "" if trail[1:2] in tuple(",;:!?") else ends
            return len(core) + 1, spoken + ends
        if name in ("e.g", "i.e") and trail.startswith("."):
            return len(core) + 1, lex.ABBREVIATIONS[name]
        if "-" in core and (spoken := self._hyphenated(core)) is not None:
            return len(core), spoken
        if core[0] in "~\u2248" and (found := words.numeric(group[1:])):
            return found[0] + 1, f"about {found[1]}"
        found = words.address(group)
        if found is None and (_DIGIT.search(core) or core in lex.CURRENCIES or name in lex.MONTHS):
            found = words.numeric(group)
            if found is None and words.code.fullmatch(core):
                found = len(core), words.mixed(core)
        if found is not None:
            length, spoken = found
            if _STOP_BEFORE_MARK.match(group[length:]):
                length += 1
            if group[length - 1] == "." and (not beyond or beyond.isupper()):
                spoken += "."  # of "p.m." at the end of a sentence
            return length, spoken
        if (spoken := words.roman_number(core, self.before)) is not None:
            return len(core), spoken
        if words.initials.fullmatch(core + ".") and trail.startswith(".") and "." in core:
            is_last = not after and trail[1:2] not in tuple(",;:!?")  # before a name, initials are the rule
            return len(core) + 1, words.letters(core.replace(".", "")) + ("." if is_last else "")
        if core in lex.ACRONYMS_AFTER_ARTICLE and self.before.lower() in lex.ARTICLES:
            return len(core), words.letters(core)
        if core.isascii() and core.isalpha():
            if core.isupper() and (len(core) > 1 or core not in "AIO"):
                is_initial = len(core) == 1 and trail == "." and after.isupper() and not self.before.islower()
                length = len(core) + is_initial  # "J. Doe"
                return length, words.capitals(core) if len(core) > 1 else words.letters(core)
            stem = core[:-1]
            return (len(core), words.capitals(core)) if core[-1] == "s" and len(stem) > 1 and stem.isupper() else None
        if core.endswith("'s") and core[:-2].isupper() and core[:-2].isalpha():
            return len(core), words.capitals(core[:-2]) + "'s"
        if _PLAIN.fullmatch(core):
            return None
        if core == "-":
            return 1, "minus" if _DIGIT.search(self.before) else ""
        folded = words.without_accents(core)
        if folded != core and _PLAIN.fullmatch(folded):
            return len(core), folded
        if all(part.isalpha() for part in core.split("-")) and folded.isascii() and "-" in core:
            return len(core), "-".join(
                words.capitals(part) if part.isupper() and part not in "AIO" else part for part in folded.split("-")
            )
        return len(core), words.fallback(folded)

    @staticmethod
    def _hyphenated(core: str) -> str | None:
        """Reads "Mon-Fri" and "mid-1980s"."""
        first, _, last = core.partition("-")
        if _is_period(core):
            return f"{lex.PERIODS[first.lower()]} to {lex.PERIODS[last.lower()]}"
        if first.isalpha() and first.islower() and last[:1].isdigit() and (found := words.numeric(last)):
            return f"{first} {found[1]}" if found[0] == len(last) else None
        return None

    def _abbreviation(self, name: str, after: str) -> str | None:
        if name in lex.AFTER_NAME and not self._precedes_name(name, after):
            return lex.AFTER_NAME[name]
        if name in lex.DAYS:
            is_day = self.core[0].isupper() and (self.trail[1:] or not after.isupper())
            return lex.DAYS[name] if is_day else None
        if name in lex.TITLES:
            return lex.TITLES[name]
        if name in lex.BEFORE_NUMBER:
            return lex.BEFORE_NUMBER[name] if after.isdigit() else None
        if name in lex.MONTHS and name == "may":
            return None
        return lex.ABBREVIATIONS.get(name)

    def _precedes_name(self, name: str, after: str) -> bool:
        """Whether "St." is a saint and "Dr." a doctor, not a street and a drive."""
        if not after.isupper() or self.trail[1:2] in tuple(",;:!?"):
            return False
        before = self.before
        follows_name = before[:1].isdigit() or (before[:1].isupper() and before[-1].isalnum() and len(before) > 3)
        return not follows_name or name in ("dr", "mt")


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
    if "-" in chunk and _is_period(chunk.rstrip(_TRAIL)):
        return False
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
    word = chunk.rstrip(_TRAIL).partition("/")[0]  # "5 GB/day"
    follows = (
        bool(_DIGIT.match(chunk.lstrip("(-")))
        or word in _FOLLOWING
        or (chunk[0] in "(½¼¾⅓⅔⅛⅜⅝⅞" and chunk[1:2].isdigit())
    )
    may_follow = follows or chunk in _BEGINNINGS or word in _BEGINNINGS
    return _Continuation(may_follow, follows, chunk[0].isdigit() and "/" not in chunk)


@lru_cache(maxsize=8192)
def _joins(group: str) -> bool:
    return bool(_JOINS.search(group))


def _marks(trail: str) -> str:
    """Closing brackets are pauses."""
    marks = re.sub(r"[)\]}]+(?=[.,;:!?])|[\[\](){}]+\Z(?<=^)", "", trail)
    return re.sub(r"[)\]}]+", ",", marks)
