"""Splits texts into segments: `segment_text` a whole text, `Segmenter` a streaming one.

A text is words with gaps between them; a gap is everything that is not spoken: marks, quotes, white space. A gap has at
most one border. The border's rank depends only on a few characters before the gap and the first one after it. So every
segment has a word, and a streaming text has the same borders as the whole text (no library guarantees that).
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class SegmenterConfig:
    """Segment lengths in characters. A Chinese, Japanese or Korean character counts as three."""

    first_chars: int = 200  # of a whole text, for a low time to first audio; sentences are not cut for it
    segment_chars: int = 400  # sentences are collected up to this length; shorter texts are not split
    max_chars: int = 800  # longer sentences are cut at a line break, a clause mark, a space, or anywhere
    ends_at_clauses: bool = False  # of a streaming text: a clause ends a segment as a sentence does

    def __post_init__(self) -> None:
        lengths = self.first_chars, self.segment_chars, self.max_chars
        if not 1 <= self.first_chars <= self.segment_chars <= self.max_chars:
            raise ValueError(f"first_chars, segment_chars and max_chars must be at least 1 and ascend, got {lengths}")


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """A piece of a streaming text. A piece that ends its segment may be empty or white space."""

    text: str
    ends: bool  # its segment


class _Rank(IntEnum):
    """How well a border separates two segments, best first."""

    END = 0  # of a sentence or paragraph
    LINE = 1  # a line break, or a sentence mark before a word in lower case
    CLAUSE = 2
    SPACE = 3
    ANYWHERE = 4


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


def _one_of(chars: str) -> str:
    return f"[{re.escape(chars)}]"


_Borders = tuple[list[int], ...]  # indexes into the text, by rank
_DEFAULTS = SegmenterConfig()
_MAX_CACHED_GAP = 8
_CONTEXT_CHARS = 32  # kept of the text before a gap: longer than any abbreviation

# Spaced marks end a sentence only before white space or in a script without spaces; sure marks always do.
_SPACED_MARKS = ".!?…‼⁇⁈⁉‽"
_SURE_MARKS = "。！？；｡．؟۔।॥։።፧፨။។៕།༎᠃׃\u037e"
_SURE_CLAUSES = "，、：､—،؛၊៖፣፤"
_IN_NUMBERS = "．，：،—"
_OPENERS = "([{<«‹“‘„‚「『（【〈《〔〖〘｢｛［＜¿¡"
_PARTICLES = "とっをがはにのもで"  # a Japanese sentence continues with one of these after a quotation

_BETWEEN_WORDS = r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])"  # most gaps: a border of the rank SPACE
_OTHER_GAP = re.compile(rf"(?!{_BETWEEN_WORDS})[\W_]+")
_SPACE_BETWEEN_WORDS = re.compile(_BETWEEN_WORDS)
_WORD = re.compile(r"[^\W_]+")
_LETTER = re.compile(r"[^\W_]")
_LAST_WORD = re.compile(r"[\w.]*\Z")
_SPACES = re.compile(r"[\s\u200b]+")
_NEWLINE = re.compile(r"[\n\r\x85\u2028\u2029]")
_BLANK_LINE = re.compile(r"(?>\r\n|[\n\r\x85\u2028])[^\S\n\r\x85\u2028]*[\n\r\x85\u2028]|\u2029")
_LIST_ITEM = re.compile(r"(?:[-*+•‣▪●○◦·–—]|#{1,6})[^\S\n\r]")
_MARKS = re.compile(_one_of(_SPACED_MARKS + _SURE_MARKS))
_MARKS_BUT_STOPS = re.compile(_one_of(_SPACED_MARKS.replace(".", "") + _SURE_MARKS))
_SURE = re.compile(_one_of(_SURE_MARKS))
_CLAUSE = re.compile(_one_of(",;:–" + _SURE_CLAUSES) + r"|(?<=\s)-+(?=\s)")
_SURE_CLAUSE = re.compile(_one_of(_SURE_CLAUSES))
_AFTER_BORDER = re.compile(r"[\s\u200b]|" + _one_of(_OPENERS))
_CLOSERS = re.compile(r"[」』）”’】》〉｣»›)\]}]+")

# Abbreviations. A full stop after them does not end a sentence.
# Case-sensitive: many are common words in lower case.
_TITLES = _words(
    """Mr Mrs Ms Mx Dr Prof Rev Hon Gen Col Maj Capt Cpt Lt Sgt Cmdr Adm Gov Sen Rep Pres Supt Messrs St Ste Mt Ft Sr Jr
    Inc Ltd Co Corp Bros Dept MM Mme Mmes Mlle Mgr Hr Fr Frl Dipl Ing Hrsg Chr Str Tel Abs Mio Mrd Jh Sra Srta Srs Sres
    Ud Uds Vd Vds Dra Dña Lic Gral Av Avda Profa Excmo Exmo Exma Eng Sn Dott Avv Sig Arch Geom"""
)
# In any case.
_SHORTENED = _words(
    """vs viz cf approx ca al resp incl excl bzw usw evtl ggf inkl exkl zzgl sog vgl geb gest allg bspw ebd usf urspr nr
    sra srta ud uds pág págs aprox avda sig sigg dott prof avv sig.ra sig.na dott.ssa prof.ssa dr dhr mevr drs bijv np
    tzn tzw godz ul např tzv ул стр проф тыс руб др гг örn"""
)
# Only before a number.
_BEFORE_NUMBER = _words(
    """no nos nrs num núm nº pp pg pag vol vols ch chap sec sect fig figs tab eq art par ver ed op cap kap kl min max
    est jan feb febr mar apr aug sep sept oct okt nov dec dez déc janv févr avr juil ene abr ago dic gen giu lug ott mon
    tue tues wed thu thur thurs fri sat sun bd aufl ziff см"""
)


_MAY_BE_WIDE = re.compile(
    "[^\\x00-\\u10ff\\u2000-\\u2e7f\\U0001f000-\\U0001faff]"
)  # quick: no other character counts as three


@lru_cache(maxsize=8192)
def _weight(char: str) -> int:
    return 3 if char.isalnum() and unicodedata.east_asian_width(char) in ("W", "H") else 1


def _is_wide(char: str) -> bool:
    return _weight(char) > 1


def _weigh(text: str) -> int:
    return sum(map(_weight, text))


def segment_text(text: str, config: SegmenterConfig = _DEFAULTS) -> list[str]:
    """The segments without surrounding white space; nothing else is dropped. A text of one segment is returned
    unchanged."""
    if text.isascii() and len(text) <= config.segment_chars:  # no character counts as three
        return [text]
    # [i]: weight of text[:i]
    weights = list(accumulate(map(_weight, text), initial=0)) if _MAY_BE_WIDE.search(text) else range(len(text) + 1)
    if weights[-1] <= config.segment_chars:
        return [text]
    borders = _borders_by_rank(text)
    segments, start, aim_chars = [], 0, config.first_chars
    while start < len(text):
        end = _segment_end(text, weights, borders, start, aim_chars, config.max_chars)
        segments.append(text[start:end].strip())
        start, aim_chars = end, config.segment_chars
    return segments if len(segments) > 1 else [text]


def _segment_end(
    text: str, weights: Sequence[int], borders: _Borders, start: int, aim_chars: int, max_chars: int
) -> int:
    def index_at(chars: int) -> int:
        return bisect_right(weights, weights[start] + chars) - 1

    min_chars = aim_chars // 4  # shorter segments are avoided
    low, target, high = max(index_at(min_chars), start + 1), index_at(aim_chars), index_at(max_chars)
    if target == len(text):
        return target
    ends = borders[_Rank.END]
    end = _nearest(ends, low, target, high) or _nearest(ends, start + 1, target, target)
    for rank in (_Rank.LINE, _Rank.CLAUSE):
        end = end or _nearest(borders[rank], low, target, high)
    end = end or _nearest_space(text, borders[_Rank.SPACE], low, target, high)
    end = end or _cut_between_characters(text, start, target)
    rest_is_short = weights[-1] - weights[end] < min_chars and high == len(text)
    return len(text) if rest_is_short else end


def _nearest(borders: list[int], low: int, target: int, high: int) -> int | None:
    """The last border from `low` to `target`, or else the first one up to `high`."""
    index = bisect_right(borders, target)
    if index and borders[index - 1] >= low:
        return borders[index - 1]
    return borders[index] if index < len(borders) and borders[index] <= high else None


def _nearest_space(text: str, others: list[int], low: int, target: int, high: int) -> int | None:
    """The nearest one of `others` and of the spaces between words."""
    other = _nearest(others, low, target, high)
    last = text.rfind(" ", low - 1, target)
    while last >= 0 and not _SPACE_BETWEEN_WORDS.match(text, last):
        last = text.rfind(" ", low - 1, last)
    if last >= 0:
        return last + 1 if other is None or other > target else max(last + 1, other)
    if other is not None and other <= target:
        return other
    first = _SPACE_BETWEEN_WORDS.search(text, target, high + 1)
    if first is None:
        return other
    return first.end() if other is None else min(first.end(), other)


def _cut_between_characters(text: str, start: int, target: int) -> int:
    first_letter = _LETTER.search(text, start)  # not _WORD: its time would be quadratic in a long word
    if first_letter is None:
        return len(text)
    cuts = range(max(target, first_letter.end()), len(text))
    return next((at for at in cuts if text[at].isalnum() and not _is_joined(text[at - 1], text[at])), len(text))


@lru_cache(maxsize=8192)
def _is_joined(left: str, right: str) -> bool:
    """Whether both belong to one visible character."""
    is_hangul_tail = "\u1160" <= right <= "\u11ff" or "\ud7b0" <= right <= "\ud7ff"
    joins_left = is_hangul_tail or unicodedata.category(right)[0] == "M" or right in "\u0e33\u0eb3\uff9e\uff9f"
    is_virama = unicodedata.combining(left) == 9
    return joins_left or is_virama or (unicodedata.category(left) == "Cf" and left != "\u200b")


def _borders_by_rank(text: str) -> _Borders:
    """All borders but those of `_SPACE_BETWEEN_WORDS`."""
    borders: _Borders = tuple([] for rank in _Rank)
    length = len(text)
    for gap in _OTHER_GAP.finditer(text):
        start, end = gap.span()
        if start == 0 or end == length:
            continue
        if text[start] != "." and end - start <= _MAX_CACHED_GAP:
            border = _cached_border(text[start - 1 : end + 1])
        else:
            border = _border(text[max(0, start - _CONTEXT_CHARS) : start], gap[0], text[end])
        if border:
            borders[border[1]].append(start + border[0])
    borders[_Rank.END].append(length)
    return borders


def _border(before: str, gap: str, after: str) -> tuple[int, _Rank] | None:
    """The index and rank of the border in a gap: the last one of the best rank, always before a visible character.

    Invariant for Segmenter: the border is never before the first white space or opening mark of the gap.
    """
    is_abbreviated = gap[0] == "." and len(gap) > 1 and _is_abbreviated(before, after)
    find = _cached_border if len(gap) <= _MAX_CACHED_GAP else _find_border
    return find(before[-1] + gap + after, is_abbreviated)


def _find_border(text: str, is_abbreviated: bool = False) -> tuple[int, _Rank] | None:
    """The border in a gap with one character before and after it."""
    before, gap, after = text[0], text[1:-1], text[-1]
    if gap == " " and not _is_joined(gap, after):  # a shortcut for most gaps
        return 1, _space_rank(before, after)
    found: tuple[int, _Rank] | None = None
    chunk_start = 0
    for spaces in _SPACES.finditer(gap):
        if found is None or not _CLOSERS.fullmatch(gap, chunk_start, spaces.start()):  # as in « Ici. »
            rank = _rank_at_spaces(before, gap, chunk_start, spaces, after, is_abbreviated)
        chunk_start = spaces.end()
        if found is None or rank <= found[1]:
            found = chunk_start, rank
    tight = _tight_border(before, gap, chunk_start, after) if chunk_start < len(gap) else None
    if tight and (found is None or tight[1] <= found[1]):
        found = tight
    if found is None:
        return None
    at = found[0]
    return None if _is_joined(gap[at - 1], gap[at] if at < len(gap) else after) else found


_cached_border = lru_cache(maxsize=16384)(_find_border)


def _rank_at_spaces(
    before: str, gap: str, chunk_start: int, spaces: re.Match[str], after: str, is_abbreviated: bool
) -> _Rank:
    """Rank of a border after white space. The chunk between the previous word or white space and this one decides."""
    chunk, white = gap[chunk_start : spaces.start()], spaces.group()
    newline = _NEWLINE.search(white)
    if newline and (_BLANK_LINE.search(white) or _LIST_ITEM.match(gap, spaces.end())):
        return _Rank.END
    marks = _MARKS.findall(chunk)
    if chunk.endswith(";") and ("\u0370" <= before <= "\u03ff" or "\u1f00" <= before <= "\u1fff"):
        marks = ["\u037e"]  # the Greek question mark, usually typed as a semicolon
    elif chunk.endswith((",", ";", ":", "،", "؛")):
        marks = []  # "e.g.," and "etc.);"
    if marks == ["."] and is_abbreviated and chunk_start == 0:
        return _Rank.SPACE
    if marks:
        starts_sentence = gap.startswith(("¿", "¡"), spaces.end()) or after.title() == after
        return _Rank.END if starts_sentence or _SURE.search(chunk) else _Rank.LINE
    if newline:
        return _Rank.LINE
    is_clause = _CLAUSE.search(gap, chunk_start, spaces.end())
    return _Rank.CLAUSE if is_clause else _space_rank(before, after)


def _space_rank(before: str, after: str) -> _Rank:
    """Ranks a space as a place to cut: in Thai and Lao, spaces separate clauses, not words."""
    return _Rank.CLAUSE if "\u0e00" <= before <= "\u0eff" or "\u0e00" <= after <= "\u0eff" else _Rank.SPACE


def _tight_border(before: str, gap: str, chunk_start: int, after: str) -> tuple[int, _Rank] | None:
    """The border after a mark that no white space separates from the next word."""
    if gap in _IN_NUMBERS and before.isdecimal() and after.isdecimal():
        return None
    marks, rank = _SURE, _Rank.END
    if _is_wide(after):
        marks = _MARKS if _is_wide(before) else _MARKS_BUT_STOPS
    last = _last_match(marks, gap, chunk_start)
    if last is None:
        last, rank = _last_match(_SURE_CLAUSE, gap, chunk_start), _Rank.CLAUSE
    if last is None:
        return None
    # Closing quotes and brackets, emoji and asterisks stay with the mark.
    after_border = _AFTER_BORDER.search(gap, last.end())
    at = after_border.start() if after_border else len(gap)
    if after in _PARTICLES and _CLOSERS.search(gap, last.end(), at):
        rank = _Rank.CLAUSE
    return at, rank


def _last_match(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    last = deque(pattern.finditer(text, start), maxlen=1)
    return last[0] if last else None


def _is_abbreviated(before: str, after: str) -> bool:
    """Whether a full stop after `before` belongs to its last word. In doubt it does: a wrong cut is audible, a missed
    one is not."""
    word = _LAST_WORD.search(before.rsplit(None, 1)[-1])
    return _is_abbreviation(word[0].lstrip("."), after.isdecimal()) if word else False


@lru_cache(maxsize=4096)
def _is_abbreviation(word: str, before_number: bool) -> bool:
    lower = word.lower()
    if word.isdecimal():
        return len(word) <= 3  # "am 3. Mai", "1. First"; a year ends a sentence
    if word in _TITLES or lower in _SHORTENED:
        return True
    if before_number and (lower in _BEFORE_NUMBER or lower.endswith("str")):  # "Hauptstr. 12"
        return True
    if len(word) == 1:
        return lower != word.upper()  # "J. Doe", "z. B."; scripts without capitals have one-letter words
    syllables = word.split(".")  # "U.S", "Ph.D", but not "example.com"
    is_short = all(syllable.isalpha() and len(syllable) <= 3 for syllable in syllables)
    return len(syllables) > 1 and is_short and min(map(len, syllables)) == 1


class Segmenter:
    """Splits a streaming text into segments of bounded length.

    The pieces, joined, are the text; trailing white space belongs to its segment. Text passes at once, but in a segment
    of `segment_chars` or more, white space and opening marks are held back until the next word. From that length on a
    segment ends with its sentence; closer to `max_chars` a line break, a clause mark or a space is enough. Segments do
    not depend on how the text was cut into pieces.
    """

    def __init__(self, config: SegmenterConfig = _DEFAULTS) -> None:
        self._config = config
        spare_chars = config.max_chars - config.segment_chars
        self._min_chars = [config.segment_chars + spare_chars * rank // _Rank.ANYWHERE for rank in _Rank]  # by rank
        if config.ends_at_clauses:
            self._min_chars[_Rank.LINE] = self._min_chars[_Rank.CLAUSE] = config.segment_chars
        self._reset()

    def _reset(self) -> None:
        self._before = ""  # the last characters up to the end of the last word
        self._weight = 0  # of the segment, up to there
        self._has_word = False
        self._gap: list[str] = []  # text after the last word
        self._gap_weight = 0
        self._held: list[str] = []  # the end of the gap that is held back
        self._ready: list[str] = []  # text for the next piece

    def push(self, text: str) -> list[SegmentPiece]:
        pieces: list[SegmentPiece] = []
        at = 0
        for word in _WORD.finditer(text):
            self._push_gap(text[at : word.start()])
            self._end_gap(word.group()[0], pieces)
            self._push_word(word.group(), pieces)
            at = word.end()
        self._push_gap(text[at:])
        if any(self._ready):
            self._emit(pieces, ends=False)
        return pieces

    def end_sentence(self, *, in_doubt: bool = False) -> list[SegmentPiece]:
        """Ends the segment if a sentence ends with the text so far. `in_doubt`: also after "Dr." and "3."."""
        is_short = self._gap_weight <= _CONTEXT_CHARS  # else the time of many calls would be quadratic
        gap = "".join(self._gap).rstrip() if self._before and is_short else ""
        border = _border(self._before, f"{gap} ", "A") if gap else None
        if border is None:
            return []
        is_long = self._weight + _weigh(gap) >= self._min_chars[border[1]]
        return self.finish() if is_long or (in_doubt and _MARKS.search(gap)) else []

    def finish(self) -> list[SegmentPiece]:
        """The rest of the text. The next `push` starts a new text."""
        pieces: list[SegmentPiece] = []
        if self._before or self._gap:
            self._ready += self._held
            self._emit(pieces, ends=True)
        self._reset()
        return pieces

    def _emit(self, pieces: list[SegmentPiece], *, ends: bool) -> None:
        pieces.append(SegmentPiece("".join(self._ready), ends))
        self._ready = []

    def _push_gap(self, text: str) -> None:
        if not text:
            return
        self._gap.append(text)
        self._gap_weight += _weigh(text)
        if self._held:
            self._held.append(text)
            return
        # Nothing is held back while the segment is too short to end here.
        may_end = self._before and self._weight + self._gap_weight >= self._config.segment_chars
        first_held = _AFTER_BORDER.search(text) if may_end else None
        if first_held:
            self._held.append(text[first_held.start() :])
        self._ready.append(text[: first_held.start()] if first_held else text)

    def _end_gap(self, after: str, pieces: list[SegmentPiece]) -> None:
        if not self._gap:
            return
        gap, held = "".join(self._gap), "".join(self._held)
        border = _border(self._before, gap, after) if self._before else None
        if border and self._weight + _weigh(gap[: border[0]]) >= self._min_chars[border[1]]:
            at = border[0]
            passed_chars = len(gap) - len(held)
            assert passed_chars <= at, (passed_chars, at)
            self._ready.append(held[: at - passed_chars])
            self._emit(pieces, ends=True)
            self._ready.append(gap[at:])
            self._weight, self._has_word = _weigh(gap[at:]), False
        else:
            self._ready.append(held)
            self._weight += self._gap_weight
        self._before = (self._before + gap)[-_CONTEXT_CHARS:]
        self._gap, self._gap_weight, self._held = [], 0, []

    def _push_word(self, word: str, pieces: list[SegmentPiece]) -> None:
        weight, start = _weigh(word), 0
        if self._weight + weight <= self._config.max_chars:
            self._weight += weight
        else:
            for at, char in enumerate(word):
                left = word[at - 1] if at else self._before[-1:]
                too_long = self._weight + _weight(char) > self._config.max_chars
                if too_long and (at > start or self._has_word) and not _is_joined(left, char):
                    self._ready.append(word[start:at])
                    self._emit(pieces, ends=True)
                    self._weight, start = 0, at
                self._weight += _weight(char)
        self._ready.append(word[start:])
        self._has_word = True
        self._before = (self._before + word)[-_CONTEXT_CHARS:]
