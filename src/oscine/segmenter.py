"""Where a text may be parted: a long one into segments to be spoken one after the other, a live one into utterances.

A text is words with gaps between them; a gap is whatever is not spoken itself: marks, quotes, white space. It holds at
most one border, and how good that is follows from a few characters before it and the first one after it. So every
segment has something to say, and text in pieces has the same borders as the whole.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class SegmenterConfig:
    """How long segments are, in characters of a Latin script; a Chinese, Japanese or Korean one counts as three."""

    first_chars: int = 200  # a whole text's first segment is short, as somebody waits; but no sentence is cut for it
    segment_chars: int = 400  # sentences are gathered up to this; a text no longer than this stays whole
    max_chars: int = 800  # a sentence longer than this is cut: at a line, a clause mark, a space, or anywhere

    def __post_init__(self) -> None:
        if not 1 <= self.first_chars <= self.segment_chars <= self.max_chars:
            raise ValueError(
                "first_chars, segment_chars and max_chars must be 1 or more and ascend, "
                f"got {self.first_chars}, {self.segment_chars} and {self.max_chars}"
            )


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a live text. One that `ends` its segment may be empty, or white space that nobody needs to speak."""

    text: str
    ends: bool


class _Rank(IntEnum):
    """How good a border is, best first."""

    END = 0  # of a sentence or paragraph
    LINE = 1  # a line's end, or a mark that might have ended a sentence: a word in lower case follows
    CLAUSE = 2
    SPACE = 3
    ANYWHERE = 4


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


def _one_of(chars: str) -> str:
    return f"[{re.escape(chars)}]"


_DEFAULTS = SegmenterConfig()
_CONTEXT_CHARS = 32  # before a gap: longer than any abbreviation

# Spaced marks end something only before white space, or in a script that has none; sure ones always do.
_SPACED_MARKS = ".!?…‼⁇⁈⁉‽"
_SURE_MARKS = "。！？；｡．؟۔।॥։።፧፨။។៕།༎᠃׃\u037e"
_SURE_CLAUSES = "，、：､—،؛၊៖፣፤"
_IN_NUMBERS = "．，：،—"
_OPENERS = "([{<«‹“‘„‚「『（【〈《〔〖〘｢｛［＜¿¡"
_PARTICLES = "とっをがはにのもで"  # after a quotation, the Japanese sentence goes on with one of these

_GAP = re.compile(r"[\W_]+")
_WORD = re.compile(r"[^\W_]+")
_LETTER = re.compile(r"[^\W_]")
_SPACES = re.compile(r"[\s\u200b]+")
_NEWLINE = re.compile(r"[\n\r\x85\u2028\u2029]")
_BLANK_LINE = re.compile(r"(?>\r\n|[\n\r\x85\u2028])[^\S\n\r\x85\u2028]*[\n\r\x85\u2028]|\u2029")
_LIST_ITEM = re.compile(r"(?:[-*+•‣▪●○◦·–—]|#{1,6})[^\S\n\r]")
_MARKS = re.compile(_one_of(_SPACED_MARKS + _SURE_MARKS))
_MARKS_BUT_STOPS = re.compile(_one_of(_SPACED_MARKS.replace(".", "") + _SURE_MARKS))
_SURE = re.compile(_one_of(_SURE_MARKS))
_CLAUSE = re.compile(_one_of(",;:–" + _SURE_CLAUSES) + r"|(?<=\s)-+(?=\s)")
_SURE_CLAUSE = re.compile(_one_of(_SURE_CLAUSES))
_ANY_BORDER = re.compile(r"[\s\u200b]|" + _one_of(_SURE_MARKS + _SURE_CLAUSES))
_ANY_BORDER_BEFORE_WIDE = re.compile(r"[\s\u200b]|" + _one_of(_SPACED_MARKS + _SURE_MARKS + _SURE_CLAUSES))
_BEHIND_BORDER = re.compile(r"[\s\u200b]|" + _one_of(_OPENERS))
_CLOSERS = re.compile(r"[」』）”’】》〉｣»›)\]}]+")

# Words with a full stop that ends no sentence: as spelt here, since in lower case many of them are common words;
_TITLES = _words(
    """Mr Mrs Ms Mx Dr Prof Rev Hon Gen Col Maj Capt Cpt Lt Sgt Cmdr Adm Gov Sen Rep Pres Supt Messrs St Ste Mt Ft Sr Jr
    Inc Ltd Co Corp Bros Dept MM Mme Mmes Mlle Mgr Hr Fr Frl Dipl Ing Hrsg Chr Str Tel Abs Mio Mrd Jh Sra Srta Srs Sres
    Ud Uds Vd Vds Dra Dña Lic Gral Av Avda Profa Excmo Exmo Exma Eng Sn Dott Avv Sig Arch Geom"""
)
# in capitals or not;
_SHORTENED = _words(
    """vs viz cf approx ca al resp incl excl bzw usw evtl ggf inkl exkl zzgl sog vgl geb gest allg bspw ebd usf urspr nr
    sra srta ud uds pág págs aprox avda sig sigg dott prof avv sig.ra sig.na dott.ssa prof.ssa dr dhr mevr drs bijv np
    tzn tzw godz ul např tzv ул стр проф тыс руб др гг örn"""
)
# and only when a number follows.
_BEFORE_NUMBER = _words(
    """no nos nrs num núm nº pp pg pag vol vols ch chap sec sect fig figs tab eq art par ver ed op cap kap kl min max
    est jan feb febr mar apr aug sep sept oct okt nov dec dez déc janv févr avr juil ene abr ago dic gen giu lug ott mon
    tue tues wed thu thur thurs fri sat sun bd aufl ziff см"""
)


@lru_cache(maxsize=8192)
def _weight(char: str) -> int:
    return 3 if char.isalnum() and unicodedata.east_asian_width(char) in ("W", "H") else 1


def _is_wide(char: str) -> bool:
    return _weight(char) > 1


def _weigh(text: str) -> int:
    return sum(map(_weight, text))


def segment_text(text: str, config: SegmenterConfig = _DEFAULTS) -> list[str]:
    """Segments without the white space around them; nothing else is left out. A text that is not split is returned as
    it was sent."""
    reach = list(accumulate(map(_weight, text), initial=0))  # weight of the text before each character
    if reach[-1] <= config.segment_chars:
        return [text]
    borders = _borders_by_rank(text)
    segments, start, aim_chars = [], 0, config.first_chars
    while start < len(text):
        end = _segment_end(text, reach, borders, start, aim_chars, config.max_chars)
        segments.append(text[start:end].strip())
        start, aim_chars = end, config.segment_chars
    return segments if len(segments) > 1 else [text]


def _segment_end(
    text: str, reach: list[int], borders: tuple[list[int], ...], start: int, aim_chars: int, max_chars: int
) -> int:
    def within(chars: int) -> int:
        return bisect_right(reach, reach[start] + chars) - 1

    short_chars = aim_chars // 4  # nothing so short stands alone, if it can be helped
    short, aim, most = max(within(short_chars), start + 1), within(aim_chars), within(max_chars)
    if aim == len(text):
        return aim
    ends = borders[_Rank.END]
    end = _nearest(ends, short, aim, most) or _nearest(ends, start + 1, aim, aim)
    for rank in (_Rank.LINE, _Rank.CLAUSE, _Rank.SPACE):
        end = end or _nearest(borders[rank], short, aim, most)
    end = end or _anywhere(text, start, aim)
    too_little_left = reach[-1] - reach[end] < short_chars and most == len(text)
    return len(text) if too_little_left else end


def _nearest(borders: list[int], least: int, aim: int, most: int) -> int | None:
    """The last border up to `aim`, or else the first one behind it."""
    index = bisect_right(borders, aim)
    if index and borders[index - 1] >= least:
        return borders[index - 1]
    return borders[index] if index < len(borders) and borders[index] <= most else None


def _anywhere(text: str, start: int, aim: int) -> int:
    first_letter = _LETTER.search(text, start)
    if first_letter is None:
        return len(text)
    cuts = range(max(aim, first_letter.end()), len(text))
    return next((at for at in cuts if text[at].isalnum() and not _is_joined(text[at - 1], text[at])), len(text))


def _is_joined(left: str, right: str) -> bool:
    """Whether a cut between the two would part what is seen as one character."""
    return _joins_left(right) or _joins_right(left)


@lru_cache(maxsize=8192)
def _joins_left(char: str) -> bool:
    is_hangul_tail = "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7ff"
    return is_hangul_tail or unicodedata.category(char)[0] == "M" or char in "\u0e33\u0eb3\uff9e\uff9f"


@lru_cache(maxsize=8192)
def _joins_right(char: str) -> bool:
    is_virama = unicodedata.combining(char) == 9
    return is_virama or (unicodedata.category(char) == "Cf" and char != "\u200b")


def _borders_by_rank(text: str) -> tuple[list[int], ...]:
    borders: tuple[list[int], ...] = tuple([] for rank in _Rank)
    for gap in _GAP.finditer(text):
        start, end = gap.span()
        if start > 0 and end < len(text):
            border = _border(text[max(0, start - _CONTEXT_CHARS) : start], gap.group(), text[end])
            if border:
                borders[border[1]].append(start + border[0])
    borders[_Rank.END].append(len(text))
    return borders


def _border(before: str, gap: str, after: str) -> tuple[int, _Rank] | None:
    """The border in a gap between two words: the last one of the best kind, always in front of something visible.

    It never comes before the first white space or opening mark of the gap: Segmenter relies on it.
    """
    if gap == " " and not _joins_left(after):  # most gaps: worth a shortcut, as is the next line
        return 1, _space_rank(before, after)
    if not (_ANY_BORDER_BEFORE_WIDE if _is_wide(after) else _ANY_BORDER).search(gap):
        return None
    found: tuple[int, _Rank] | None = None
    chunk_start = 0
    for spaces in _SPACES.finditer(gap):
        if found is None or not _CLOSERS.fullmatch(gap, chunk_start, spaces.start()):  # as in « Ici. »
            rank = _rank_at_spaces(before, gap, chunk_start, spaces, after)
        chunk_start = spaces.end()
        if found is None or rank <= found[1]:
            found = chunk_start, rank
    tight = _tight_border(before[-1], gap, chunk_start, after) if chunk_start < len(gap) else None
    if tight and (found is None or tight[1] <= found[1]):
        found = tight
    if found is None:
        return None
    at = found[0]
    return None if _is_joined(gap[at - 1], gap[at] if at < len(gap) else after) else found


def _rank_at_spaces(before: str, gap: str, chunk_start: int, spaces: re.Match[str], after: str) -> _Rank:
    """How good a border is behind white space, by what stands between it and the word or the white space before it."""
    chunk, white = gap[chunk_start : spaces.start()], spaces.group()
    newline = _NEWLINE.search(white)
    if newline and (_BLANK_LINE.search(white) or _LIST_ITEM.match(gap, spaces.end())):
        return _Rank.END
    marks = _MARKS.findall(chunk)
    if chunk.endswith(";") and ("\u0370" <= before[-1] <= "\u03ff" or "\u1f00" <= before[-1] <= "\u1fff"):
        marks = ["\u037e"]  # the Greek question mark, as it is mostly typed
    elif chunk.endswith((",", ";", ":", "،", "؛")):
        marks = []  # "e.g.," and "etc.);"
    if marks == ["."] and gap[0] == "." and chunk_start == 0 and _is_abbreviated(before, after):
        return _Rank.SPACE
    if marks:
        begins = gap.startswith(("¿", "¡"), spaces.end()) or after.title() == after
        return _Rank.END if begins or _SURE.search(chunk) else _Rank.LINE
    if newline:
        return _Rank.LINE
    is_clause = _CLAUSE.search(gap, chunk_start, spaces.end())
    return _Rank.CLAUSE if is_clause else _space_rank(before, after)


def _space_rank(before: str, after: str) -> _Rank:
    """Thai and Lao put spaces between clauses, not between words."""
    return _Rank.CLAUSE if "\u0e00" <= before[-1] <= "\u0eff" or "\u0e00" <= after <= "\u0eff" else _Rank.SPACE


def _tight_border(before: str, gap: str, chunk_start: int, after: str) -> tuple[int, _Rank] | None:
    """The border behind a mark with no white space between it and the next word."""
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
    # What closes a quotation or bracket goes with the mark, as do emoji and asterisks.
    behind = _BEHIND_BORDER.search(gap, last.end())
    at = behind.start() if behind else len(gap)
    if after in _PARTICLES and _CLOSERS.search(gap, last.end(), at):
        rank = _Rank.CLAUSE
    return at, rank


def _last_match(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    last = deque(pattern.finditer(text, start), maxlen=1)
    return last[0] if last else None


def _is_abbreviated(before: str, after: str) -> bool:
    """Whether a full stop behind `before` belongs to its last word. In doubt it does: a wrong cut is heard, a missed
    one is not."""
    word = re.split(r"[^\w.]", before.rsplit(None, 1)[-1])[-1].lstrip(".")
    lower = word.lower()
    if word.isdecimal():
        return len(word) <= 3  # "am 3. Mai", "1. First"; a year ends a sentence
    if word in _TITLES or lower in _SHORTENED:
        return True
    if after.isdecimal() and (lower in _BEFORE_NUMBER or lower.endswith("str")):  # "Hauptstr. 12"
        return True
    if len(word) == 1:
        return lower != word.upper()  # "J. Doe", "z. B."; scripts without capitals have words of one letter
    parts = word.split(".")  # "U.S", "Ph.D", but not "example.com"
    return len(parts) > 1 and all(part.isalpha() and len(part) <= 3 for part in parts) and min(map(len, parts)) == 1


class Segmenter:
    """Parts a text that arrives in pieces into segments that do not grow without bound.

    All parts, joined, are the text; a segment's trailing white space belongs to it. Text passes at once: only beyond
    `segment_chars` white space and opening marks wait for the next word, and they would not be heard alone anyway.
    From `segment_chars` on a segment ends with its sentence, and the nearer it comes to `max_chars` the less it takes:
    a line, a clause mark, a space. Where it ends does not depend on how the text was cut into pieces.
    """

    def __init__(self, config: SegmenterConfig = _DEFAULTS) -> None:
        self._config = config
        spare_chars = config.max_chars - config.segment_chars
        self._from_chars = [config.segment_chars + spare_chars * rank // _Rank.ANYWHERE for rank in _Rank]
        self._begin()

    def _begin(self) -> None:
        self._before = ""  # the last characters up to the last word's end
        self._weight = 0  # of the segment, up to there
        self._has_word = False  # the segment, up to there
        self._gap: list[str] = []  # all since then, and of it, what is held back
        self._gap_weight = 0
        self._held: list[str] = []
        self._ready: list[str] = []

    def push(self, piece: str) -> list[Part]:
        parts: list[Part] = []
        at = 0
        for word in _WORD.finditer(piece):
            self._take_gap(piece[at : word.start()])
            self._close_gap(word.group()[0], parts)
            self._take_word(word.group(), parts)
            at = word.end()
        self._take_gap(piece[at:])
        if any(self._ready):
            self._give(parts, ends=False)
        return parts

    def finish(self) -> list[Part]:
        """The rest: no more text comes. The next piece begins another text."""
        parts: list[Part] = []
        if self._before or self._gap:
            self._ready += self._held
            self._give(parts, ends=True)
        self._begin()
        return parts

    def _give(self, parts: list[Part], *, ends: bool) -> None:
        parts.append(Part("".join(self._ready), ends))
        self._ready = []

    def _take_gap(self, run: str) -> None:
        if not run:
            return
        self._gap.append(run)
        self._gap_weight += _weigh(run)
        if self._held:
            self._held.append(run)
            return
        # A border that is already too early to count needs no holding back.
        may_end = self._before and self._weight + self._gap_weight >= self._config.segment_chars
        first_held = _BEHIND_BORDER.search(run) if may_end else None
        if first_held:
            self._held.append(run[first_held.start() :])
        self._ready.append(run[: first_held.start()] if first_held else run)

    def _close_gap(self, after: str, parts: list[Part]) -> None:
        if not self._gap:
            return
        gap, held = "".join(self._gap), "".join(self._held)
        border = _border(self._before, gap, after) if self._before else None
        if border and self._weight + _weigh(gap[: border[0]]) >= self._from_chars[border[1]]:
            at = border[0]
            passed_chars = len(gap) - len(held)
            assert passed_chars <= at, (passed_chars, at)
            self._ready.append(held[: at - passed_chars])
            self._give(parts, ends=True)
            self._ready.append(gap[at:])
            self._weight, self._has_word = _weigh(gap[at:]), False
        else:
            self._ready.append(held)
            self._weight += self._gap_weight
        self._before = (self._before + gap)[-_CONTEXT_CHARS:]
        self._gap, self._gap_weight, self._held = [], 0, []

    def _take_word(self, run: str, parts: list[Part]) -> None:
        weight, start = _weigh(run), 0
        if self._weight + weight <= self._config.max_chars:
            self._weight += weight
        else:
            for at, char in enumerate(run):
                left = run[at - 1] if at else self._before[-1:]
                too_long = self._weight + _weight(char) > self._config.max_chars
                if too_long and (at > start or self._has_word) and not _is_joined(left, char):
                    self._ready.append(run[start:at])
                    self._give(parts, ends=True)
                    self._weight, start = 0, at
                self._weight += _weight(char)
        self._ready.append(run[start:])
        self._has_word = True
        self._before = (self._before + run)[-_CONTEXT_CHARS:]
