"""The level *clean*: takes out of a text what is not words and marks, in any language.

Typographic characters are folded to ASCII, emoji, Markdown, tags, entities and control characters are removed. Where
they carry a pause (a heading, a list item, <br>), a mark takes their place. Next to Chinese, Japanese and Korean
characters, quotes and dashes are ordinary marks and stay. Each rule looks at a bounded part of the text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Container
from functools import lru_cache

from oscine.text.scanner import CONTEXT_CHARS, Match, NeedMoreText

_MAX_TAG_CHARS = 1000
_MAX_LINK_CHARS = 200  # of its text; at most CONTEXT_CHARS, so that its end sees its start
_MAX_URL_CHARS = 1000
_MAX_RULER_CHARS = 200
_MAX_ENTITY_CHARS = 34
_MAX_RUN = 32
_MAX_LINE_START = _MAX_RULER_CHARS + 64  # characters that may show what a line begins with

_WIDE = "\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_IS_WIDE = re.compile(f"[{_WIDE}]")
# Characters that stand for ASCII ones wherever they are.
_FOLDED = {
    **dict.fromkeys("\u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f", " "),
    **dict.fromkeys("\u2028\u2029\u0085\x0b\x0c", "\n"),
    **dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63", "-"),
    **dict.fromkeys("\u2044\u2215", "/"),
    "\u2024": ".", "\u203c": "!!", "\u2047": "??", "\u2048": "?!", "\u2049": "!?", "\u203d": "?!", "\u2217": "*",
    "\u2043": "-", "\u00b4": "'", "\u02bc": "'", "\u2032": "'", "\u2033": '"',
    "\u201a": "'", "\u201b": "'", "\u201e": '"', "\u201f": '"', "\u2039": "'", "\u203a": "'", "\u00ab": '"',
    "\u00bb": '"', "\ufb00": "ff", "\ufb01": "fi", "\ufb02": "fl", "\ufb03": "ffi", "\ufb04": "ffl",
}  # fmt: skip
# Those that are ordinary marks of Chinese and Japanese, too.
_QUOTES = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2026": "...", "\u2025": ".."}
_DASHES = "\u2013\u2014\u2015\u2e3a\u2e3b"
_ARROWS = "\u2190-\u21ff\u27f0-\u27ff\u2794-\u27be"
_INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc"
_CONTROLS = r"\x00-\x08\x0e-\x1f\x7f\x80-\x84\x86-\x9f"
_JOINERS = "\u200c\u200d\ufe0e\ufe0f"  # also of other scripts; they belong to emoji if they follow one
_EMOJI_CHARS = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u2600-\u2775\u2b00-\u2bff\U0001f000-\U0001f0ff\U0001f18a-\U0001fbff"
)
_EMOJI = f"[{_EMOJI_CHARS}][\ufe0e\ufe0f\u20e3\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*"
_STYLED = "\u24b6-\u24e9\U0001d400-\U0001d7ff\U0001f130-\U0001f189"  # letters in another font, as phones offer them
_BULLETS = r"\-+*\u2022\u2023\u25aa\u25cf\u25cb\u25e6\u00b7\u2013\u2014\u2043"

_TRANSLATION = str.maketrans(_FOLDED | _QUOTES)
_FOLD_RUN = re.compile(f"[{''.join(map(re.escape, _FOLDED))}]{{1,{_MAX_RUN}}}")
_QUOTE_CHARS = "".join(_QUOTES)
_QUOTE_RUN = re.compile(f"[{_QUOTE_CHARS}]{{1,{_MAX_RUN}}}")
_INVISIBLE_RUN = re.compile(f"[{_INVISIBLE}{_CONTROLS}]{{1,{_MAX_RUN}}}")
_STYLED_RUN = re.compile(f"[{_STYLED}]{{1,{_MAX_RUN}}}")
_EMOJI_RUN = re.compile(rf"[ \t]{{0,8}}{_EMOJI}(?:[ \t]{{0,2}}{_EMOJI}){{0,{_MAX_RUN}}}")
_KEYCAP = re.compile("[\ufe0e\ufe0f]*\u20e3|[\ufe0e\ufe0f]+")
_DASH_RUN = re.compile(rf"[ \t]{{0,8}}(?:[{_DASHES}]{{1,8}}|-{{2,8}})[ \t]{{0,8}}")
_ARROW = re.compile(rf"[ \t]{{0,8}}(?:[{_ARROWS}]|<?[-=]{{1,2}}>)\ufe0f?[ \t]{{0,8}}")
_ARROW_BEGUN = re.compile(r"<[-=]{1,2}\Z")
_PIPE = re.compile("[ \t]{0,8}[|\u2022\u2023][ \t]{0,8}")
_EMPHASIS = re.compile(rf"\*{{1,{_MAX_RUN}}}|_{{1,{_MAX_RUN}}}|~{{2,{_MAX_RUN}}}|`{{1,{_MAX_RUN}}}")
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});")
_ENTITY_BEGUN = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{0,30}|#\d{0,7}|#[xX][0-9a-fA-F]{0,6})?\Z")
_ESCAPED = re.compile(r"\\([\\`*_{}\[\]()#+\-.!~|<>])")

_NAME = r"[A-Za-z][\w:.\-]{0,60}"
_ATTRIBUTE = r"""\s+[\w:@.\-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+)"""
NAMED_TAG = rf"</?({_NAME})(?:{_ATTRIBUTE})*+\s*/?>"
_TAG = re.compile(rf"{NAMED_TAG}|<!--(?:[^-]++|-(?!->)){{0,250}}+-->|<![A-Za-z][^<>]*>|<\?[A-Za-z][^<>]*\?>")
_PROLOG = re.compile(r"<(?:\?xml|!doctype\s+speak)\b", re.IGNORECASE)
_CDATA_START = "<![CDATA["
_CDATA = re.compile(r"<!\[CDATA\[((?:[^\]]++|\](?!\]>))*+)\]\]>")
_URL_START = r"(?:https?://|mailto:|www\.)"
_MAIL = rf"[^\s<>@{_WIDE}]"
_AUTOLINK = re.compile(rf"<({_URL_START}[^\s<>]+|{_MAIL}{{1,64}}@{_MAIL}+)>")
_AUTOLINK_BEGUN = re.compile(rf"<(?:{_URL_START}[^\s<>]*|{_MAIL}{{0,64}}(?:@{_MAIL}*)?)\Z")
_WHITE_BEFORE_TAG = re.compile(r"\s{1,64}(?=<|\Z)")
_TAG_BEGUN = re.compile(
    rf"<(?:/?(?:{_NAME}(?:{_ATTRIBUTE})*+"
    r"""(?:\s+(?:[\w:@.\-]+\s*(?:=\s*(?:"[^"]*|'[^']*)?)?)?|\s*/)?)?"""
    r"|!(?:--?|--(?:[^-]++|-(?!->)){0,260}+|[A-Za-z][^<>]*)?|\?(?:[A-Za-z][^<>]*)?)?\Z"
)
# Tags with a pause before and after them.
_BLOCK_NAMES = """address article aside blockquote body br caption center dd div dl dt fieldset figcaption figure footer
form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p paragraph pre section sentence table tbody
td tfoot th thead title tr ul"""
BLOCKS = frozenset(_BLOCK_NAMES.split())
_SENTENCE = "s"  # of SSML, where it is a block; in HTML it is struck through
_OTHER_RULES = frozenset({"break", "sub", "say-as"})  # a run of tags ends before them
_LABEL = rf"[^\[\]\n]{{1,{_MAX_LINK_CHARS - 4}}}"
_ADDRESS = rf"\([^()\s]{{1,{_MAX_URL_CHARS}}}(?: \"[^\"\n]{{0,100}}\")?\)"
_ADDRESS_BEGUN = rf"(?:\([^()\s]{{0,{_MAX_URL_CHARS}}}(?: \"[^\"\n]{{0,100}}\"?)?)?\Z"
_LINK_START = re.compile(rf"!?\[(?={_LABEL}\]{_ADDRESS})")
_LINK_BEGUN = re.compile(rf"!\Z|!?\[(?:{_LABEL})?\Z|!?\[{_LABEL}\]{_ADDRESS_BEGUN}")
_LINK_END = re.compile(rf"\]{_ADDRESS}")
_LINK_END_BEGUN = re.compile(rf"\]{_ADDRESS_BEGUN}")
_FOOTNOTE = re.compile(r"\[\^[\w\-]{1,20}\]:?")
_FOOTNOTE_BEGUN = re.compile(r"\[(?:\^[\w\-]{0,20})?\Z")

_NEWLINES = re.compile(rf"[ \t]{{0,8}}\r?\n(?:[ \t]{{0,8}}\r?\n){{0,{_MAX_RUN}}}")
_FENCE = re.compile(r"[ \t]{0,12}(?:`{3,8}|~{3,8})[ \t]?[\w+#.\-]{0,20}[ \t]{0,4}(?=\r?\n|\Z)")
_FENCE_BEGUN = re.compile(r"[ \t]{0,12}(?:`{1,8}|~{1,8})[ \t]?[\w+#.\-]{0,20}[ \t]{0,4}\r?\Z")
_RULER = re.compile(
    rf"[ \t]{{0,12}}+(?:(?:[-*_=~][ \t]?+){{3,{_MAX_RULER_CHARS}}}+"
    rf"|(?=[^\n]*--)[|:\- \t]{{3,{_MAX_RULER_CHARS}}}+)(?=\r?\n|\Z)"
)
_RULER_BEGUN = re.compile(rf"[-*_=~|: \t]{{0,{_MAX_RULER_CHARS}}}\r?\Z")
_HEADING = re.compile(r"[ \t]{0,12}#{1,6}[ \t]{1,8}")
_ITEM = re.compile(rf"[ \t]{{0,12}}[{_BULLETS}][ \t]{{1,8}}(?:\[[ xX]\][ \t]{{1,8}})?")
_QUOTED = re.compile(r"[ \t]{0,12}(?:>[ \t]{0,4}){1,8}")
_ROW = re.compile(r"[ \t]{0,12}\|[ \t]{0,8}")
# A line that ends with a pause: a heading, an item of a list, a row of a table.
_BLOCK_LINE = re.compile(rf"[ \t]{{0,12}}(?:#{{1,6}}[ \t]|[{_BULLETS}][ \t]|\d{{1,3}}[.)][ \t]|\||>|[-=_*~`]{{3}})")
_LOOKAHEAD = 16  # characters that tell whether a line is one
_MARK = ".!?:;,\u2026\u3002\uff01\uff1f\uff1a\uff1b\uff0c\u3001\u061f\u060c\u0964"
# Characters after a mark that do not change that a pause is there: spaces, quotes, brackets, Markdown, emoji.
_TRANSPARENT = re.compile(
    rf"[\s\"'()\[\]*_`~|#\u2018\u2019\u201c\u201d\u00bb{_BULLETS}{_JOINERS}\u20e3{_EMOJI_CHARS}]*"
)

_STARTS = (
    rf"[ \t]{{1,8}}(?=[-=<]{{0,3}}\r?\Z|\r?\n|{_EMOJI}|[{_DASHES}{_ARROWS}|\u2022\u2023]|--"
    r"|<?[-=]{1,2}>|</?(?:[A-Za-z]|\Z))"
    r"|\r?\n|\r\Z"
    rf"|(?m:^)(?=[ \t]{{0,12}}(?:[{_BULLETS}#>|`~=_]|\Z))"
    rf"|[{''.join(map(re.escape, [*_FOLDED, *_QUOTES]))}{_DASHES}{_ARROWS}]"
    rf"|[{_INVISIBLE}{_CONTROLS}\u20e3{_JOINERS}{_STYLED}]"
    rf"|{_EMOJI}|[*_`|\u2022\u2023<&\\]|\[(?=[^\[\]\n]|\Z)|\](?=\(|\Z)|~~|~\Z|!(?=\[|\Z)|-(?=[->]|\Z)|=(?=>|\Z)"
)
_UNTOUCHED = re.compile(r"[A-Za-z0-9 .,:;?'\"()/$%@^+{}!-]*\Z")
_PLAIN_LINE = re.compile(r"(?![ ]*[-+:])")


def is_plain(text: str) -> bool:
    """Whether nothing in the text is changed: a quick check that is right for plain ASCII prose on one line."""
    return bool(_UNTOUCHED.match(text)) and "--" not in text and bool(_PLAIN_LINE.match(text)) and "![" not in text


def folded(text: str) -> str:
    """The text with typographic characters as ASCII ones."""
    return text.translate(_TRANSLATION)


@lru_cache(maxsize=1024)
def _without_style(chars: str) -> str:
    return unicodedata.normalize("NFKC", chars)


class CleaningRule:
    starts = _STARTS

    def __init__(self, *, pauses_at_paragraphs: bool = False, keeps_tags: bool = False) -> None:
        """`pauses_at_paragraphs`: another rule turns blank lines into silence."""
        self._leaves_paragraphs = pauses_at_paragraphs
        self._tags = None if keeps_tags else TagReader()

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        if at == len(text):
            return None
        char = text[at]
        if char in _QUOTES and 0 < at < len(text) - 1 and text[at - 1] < "\x80" > text[at + 1]:  # nothing wide
            return _new(Match, (at + 1, _QUOTES[char], 0.0, False))
        before = text[max(0, at - CONTEXT_CHARS) : at]
        if (at == 0 or text[at - 1] == "\n") and (char in _LINE_MARKS or char in " \t"):
            found = _line_start(text, at, ended=ended)
            if found:
                return found
        if char in " \t\r\n":
            if self._tags and (found := self._tags.after_white(text, at, said, ended=ended)):
                return found
            return _white(text, at, before, said, ended=ended, leaves_paragraphs=self._leaves_paragraphs)
        if char in "*_~`":
            return _emphasis(text, at, before, ended=ended)
        if char == "<":
            if self._tags is None:
                return None
            return _autolink(text, at, said, ended=ended) or self._tags.match(text, at, said, ended=ended)
        if char in "[]!":
            return _link(text, at, before, ended=ended)
        if char == "&":
            return _entity(text, at, ended=ended)
        if char == "\\":
            _need(text, at, 2, ended=ended)
            escaped = _ESCAPED.match(text, at)
            return Match(at + 2, escaped[1]) if escaped else None
        if char in "|\u2022\u2023":
            return _separator(_PIPE, text, at, said, ended=ended)
        return _character(text, at, before, said, ended=ended)


_new = tuple.__new__  # twice as quick as the constructor of a named tuple


def _need(text: str, at: int, chars: int, *, ended: bool) -> None:
    if not ended and len(text) - at < chars:
        raise NeedMoreText


def _run_end(found: re.Match[str], *, ended: bool) -> int:
    """The end of a run, which may go on when more text comes."""
    if not ended and found.end() == len(found.string):
        raise NeedMoreText
    return found.end()


def _needs_mark(said: str) -> bool:
    """Whether a pause after what was said needs a mark of its own."""
    if said[-1:].isalnum() and said[-1] < "\x80":
        return True  # a shortcut for most texts
    backwards = said[::-1]
    found = _TRANSPARENT.match(backwards)
    last = backwards[found.end() :][:1] if found else ""
    return last != "" and last not in _MARK


# --- lines ------------------------------------------------------------------------------------------------------------


# What a line may begin with, by its first visible character.
_LINE_MARKS: dict[str, tuple[re.Pattern[str], ...]] = {
    **dict.fromkeys("-*", (_RULER, _ITEM)),
    **dict.fromkeys("_=:", (_RULER,)),
    **dict.fromkeys("+\u2022\u2023\u25aa\u25cf\u25cb\u25e6\u00b7\u2013\u2014\u2043", (_ITEM,)),
    "`": (_FENCE,),
    "~": (_FENCE, _RULER),
    "#": (_HEADING,),
    ">": (_QUOTED,),
    "|": (_RULER, _ROW),
}
_INDENT = re.compile(r"[ \t]{0,12}")


def _line_start(text: str, at: int, *, ended: bool) -> Match | None:
    """Marks of Markdown at the start of a line."""
    if not ended and (left := len(text) - at) <= _MAX_LINE_START:
        if _RULER_BEGUN.match(text, at) or _FENCE_BEGUN.match(text, at):
            raise NeedMoreText
        if left < _LOOKAHEAD and _BLOCK_BEGUN.match(text, at):
            raise NeedMoreText
    mark = _INDENT.match(text, at).end()  # type: ignore[union-attr]
    for pattern in _LINE_MARKS.get(text[mark : mark + 1], ()):
        if found := pattern.match(text, at):
            return Match(_run_end(found, ended=ended), "") if found.end() > at else None
    return None


_BLOCK_BEGUN = re.compile(rf"[ \t]{{0,12}}(?:#{{1,6}}[ \t]*|[{_BULLETS}][ \t]*(?:\[[ xX]?\]?[ \t]*)?|[>| \t]*)\Z")
_LINE_BEGUN = re.compile(rf"[ \t]{{0,12}}(?:#{{0,6}}|[{_BULLETS}]?|\d{{1,3}}[.)]?|[-=_*~`]{{1,2}})\Z")


_WHITE = re.compile(r"[ \t]*")
_UNCLEAR = re.compile(r"[ \t]*[-=<]{0,3}\r?\Z")
_ONLY_SPACES = re.compile(r"\s*\Z")


def _white(text: str, at: int, before: str, said: str, *, ended: bool, leaves_paragraphs: bool) -> Match | None:
    """White space before a line break, an emoji, a dash or the end of the text so far."""
    if (newlines := _NEWLINES.match(text, at)) is None:
        if not ended and _UNCLEAR.match(text, at):
            raise NeedMoreText
        visible = _WHITE.match(text, at).end()  # type: ignore[union-attr]
        if text[visible : visible + 1] in ("|", "\u2022", "\u2023"):
            return _separator(_PIPE, text, at, said, ended=ended)
        following = text[visible : visible + 2]
        if following[:1] in ("", "\r", "\n") or (following[0] == "<" and following[1:] not in ("-", "=")):
            return None  # not even an arrow
        return _character(text, at, before, said, ended=ended)
    if not before[-1:].isalnum() and (before.rstrip(" \t\r").endswith("\n") or not before.strip()):
        return None  # the text has not begun, or the break belongs to an earlier one
    end = newlines.end()
    if not ended and (
        _ONLY_SPACES.match(text, end) or (len(text) - end < 2 * _LOOKAHEAD and _LINE_BEGUN.match(text, end))
    ):
        raise NeedMoreText
    line = before[before.rfind("\n") + 1 :]
    if not any(map(str.isalnum, line)) or (("`" in line or "~" in line) and _FENCE.fullmatch(line)):
        return None  # a ruler; the line before it has the mark
    blank = newlines[0].count("\n") > 1
    pauses = blank or bool(_BLOCK_LINE.match(line) or _BLOCK_LINE.match(text, end))
    if end == len(text) or not pauses or (blank and leaves_paragraphs) or not _needs_mark(said):
        return None
    return Match(end, ("\u3002" if _IS_WIDE.match(said.rstrip()[-1:]) else ".") + newlines[0].lstrip(" \t"))


# --- inside a line ----------------------------------------------------------------------------------------------------


def _emphasis(text: str, at: int, before: str, *, ended: bool) -> Match | None:
    char = text[at]
    if text[at + 1 : at + 2] not in ("", char):  # a run of one
        if char == "~":
            return None
        end = at + 1
    else:
        run = _EMPHASIS.match(text, at)
        if run is None:
            if char == "~" and at + 1 == len(text) and not ended:
                raise NeedMoreText
            return None
        end = _run_end(run, ended=ended)
    if char in "~`":
        return _new(Match, (end, "", 0.0, False))
    left, right = before[-1:], text[end : end + 1]
    opens = (not right.isspace() and right != "") and not left.isalnum()
    closes = (not left.isspace() and left != "") and not right.isalnum()
    glued = char == "*" and end - at > 1 and not left.isspace() and not right.isspace()  # "**Un**believable"
    return _new(Match, (end, "", 0.0, False)) if opens or closes or glued else None


def _autolink(text: str, at: int, said: str, *, ended: bool) -> Match | None:
    """An address between angle brackets, or an arrow."""
    if found := _AUTOLINK.match(text, at, at + _MAX_TAG_CHARS):
        return Match(found.end(), found[1].removeprefix("mailto:"))
    if _ARROW.match(text, at):
        return _separator(_ARROW, text, at, said, ended=ended)
    if not ended and (
        _ARROW_BEGUN.match(text, at) or (len(text) - at < _MAX_TAG_CHARS and _AUTOLINK_BEGUN.match(text, at))
    ):
        raise NeedMoreText
    return None


class TagReader:
    """Finds runs of tags, of which at most a pause is spoken."""

    def __init__(self, names: Container[str] | None = None) -> None:
        """`names`: of these tags only, and what XML puts around them."""
        self._names = names
        self._is_ssml = False  # within <speak>

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        reads_cdata = text[at + 1 : at + 2] in ("", "!") and (self._names is None or self._is_ssml)
        if reads_cdata and (literal := _cdata(text, at, ended=ended)):
            return literal
        end, is_block, self._is_ssml = self._run(text, at, ended=ended)
        if end == at:
            return None
        if not is_block:
            return Match(end, "")
        space = "" if text[end : end + 1].isspace() or end == len(text) else " "
        return Match(end, "." + space if _needs_mark(said) else space if said[-1:].strip() else "")

    def after_white(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        """White space and the tags after it, if a mark belongs before both."""
        if not _needs_mark(said):
            return None
        white = _WHITE_BEFORE_TAG.match(text, at)
        if white is None:
            return None
        start = white.end()
        if start == len(text) and not ended:
            raise NeedMoreText
        limit = start + _MAX_TAG_CHARS
        first = _TAG.match(text, start, limit)
        if first is None and (ended or len(text) > limit):
            return None
        if first and not _is_block((first[1] or "").lower(), is_ssml=self._is_ssml):
            return None  # words before it need not wait for the end of the run
        end, is_block, is_ssml = self._run(text, start, ended=ended)
        if not is_block:
            return None
        self._is_ssml = is_ssml
        return Match(end, "." if text[end : end + 1].isspace() or end == len(text) else f".{white[0]}")

    def _run(self, text: str, at: int, *, ended: bool) -> tuple[int, bool, bool]:
        """The end of the tags, whether there is a pause at one of them, and whether <speak> is open after them."""
        limit = min(len(text), at + _MAX_TAG_CHARS)
        end, is_block, is_ssml = at, False, self._is_ssml
        for _ in range(_MAX_RUN):
            found = _TAG.match(text, end, limit)
            if found is None:
                break
            name = (found[1] or "").lower()
            opens = text[end + 1] != "/"
            if end > at and name in _OTHER_RULES and opens:
                break
            if self._leaves(name, text, end, is_ssml=is_ssml):
                break
            is_ssml = opens if name == "speak" else is_ssml
            is_block |= _is_block(name, is_ssml=is_ssml)
            end = found.end()
        may_go_on = end == len(text) or (limit == len(text) and _TAG_BEGUN.match(text, end))
        if may_go_on and not ended:
            raise NeedMoreText
        return end, is_block, is_ssml

    def _leaves(self, name: str, text: str, at: int, *, is_ssml: bool) -> bool:
        """Whether the tag is text. Comments and the like have no name."""
        if self._names is None or name in self._names:
            return False
        return name != "" or not (is_ssml or _PROLOG.match(text, at))


def ends_within_tag(text: str, at: int) -> bool:
    """Whether after tags comes one that is not complete."""
    while found := _TAG.match(text, at):
        at = found.end()
    is_literal = text.startswith(_CDATA_START[: len(text) - at], at)
    return at < len(text) and (is_literal or _TAG_BEGUN.match(text, at) is not None)


def _is_block(name: str, *, is_ssml: bool) -> bool:
    return name in BLOCKS or (is_ssml and name == _SENTENCE)


def _cdata(text: str, at: int, *, ended: bool) -> Match | None:
    if found := _CDATA.match(text, at, at + _MAX_TAG_CHARS):
        return Match(found.end(), folded(found[1]))
    left = len(text) - at
    if not ended and left < _MAX_TAG_CHARS and text.startswith(_CDATA_START[:left], at):
        raise NeedMoreText
    return None


def _link(text: str, at: int, before: str, *, ended: bool) -> Match | None:
    if text[at] == "]":
        if end := _LINK_END.match(text, at):
            _, bracket, label = before[-_MAX_LINK_CHARS:].rpartition("[")
            is_link = bracket and label and "]" not in label and "\n" not in label
            return _new(Match, (end.end(), "", 0.0, False)) if is_link else None
        if not ended and _LINK_END_BEGUN.match(text, at):
            raise NeedMoreText
        return None
    if found := _FOOTNOTE.match(text, at):
        return Match(_run_end(found, ended=ended), "")
    if start := _LINK_START.match(text, at):
        return _new(Match, (start.end(), "", 0.0, False))
    if not ended and (_LINK_BEGUN.match(text, at) or _FOOTNOTE_BEGUN.match(text, at)):
        raise NeedMoreText
    return None


def _entity(text: str, at: int, *, ended: bool) -> Match | None:
    if found := _ENTITY.match(text, at):
        char = html.unescape(found[0])
        return None if char == found[0] else Match(found.end(), folded(char))
    if not ended and len(text) - at <= _MAX_ENTITY_CHARS and _ENTITY_BEGUN.match(text, at):
        raise NeedMoreText
    return None


def _separator(pattern: re.Pattern[str], text: str, at: int, said: str, *, ended: bool) -> Match | None:
    """A dash, an arrow or the bar of a table: a pause between words."""
    found = pattern.match(text, at)
    if found is None:
        return None
    end = _run_end(found, ended=ended)
    following = text[end : end + 1]
    if not following or following in "\r\n":
        return Match(end, "")
    if not said.strip():
        return Match(end, "")
    if following in _MARK:
        return Match(end, "")
    return Match(end, ", " if _needs_mark(said) else " " if not said[-1].isspace() else "")


_IN_RANGE = re.compile(r"[^\W_]|[$€£¥₹%°'\"]")  # of "£5–£8"


def _dash(text: str, at: int, before: str, said: str, *, ended: bool) -> Match | None:
    found = _DASH_RUN.match(text, at)
    if found is None:
        return None
    end = _run_end(found, ended=ended)
    left, right = before[-1:], text[end : end + 1]
    dash = found[0].strip(" \t")
    if _IS_WIDE.match(left) or _IS_WIDE.match(right):
        return Match(end, found[0])  # unchanged
    if dash[0] in _DASHES and len(dash) == 1 and left.isdigit() and right.isdigit():
        return Match(end, "-")
    if dash == "\u2013" and len(found[0]) == 1 and _IN_RANGE.match(left) and _IN_RANGE.match(right):
        return Match(end, "-")
    is_spaced = len(found[0]) > len(dash)
    if dash.isascii() and not (found[0][0] != "-" != found[0][-1] if is_spaced else (left + right).isalpha()):
        return Match(end, found[0])  # "--option"
    return _separator(_DASH_RUN, text, at, said, ended=ended)


def _emoji(text: str, at: int, before: str, *, ended: bool) -> Match | None:
    run = _EMOJI_RUN.match(text, at)
    if run is None:
        return None
    end = _run_end(run, ended=ended)
    _need(text, end, 3, ended=ended)  # two spaces may be followed by another emoji of the run
    if not before.strip() or before[-1] == "\n":
        spaces = len(text[end : end + 2]) - len(text[end : end + 2].lstrip(" \t"))
        return Match(end + spaces, "")
    following = text[end : end + 2]
    if following[:1].isalnum():
        return Match(end, " ")
    starts_anew = following[:1] == " " and following[1:2].isupper() and before.rstrip()[-1:].isalnum()
    return Match(end, "," if starts_anew else "")


_FOLD_CHARS = frozenset(_FOLDED)
_IS_STYLED = re.compile(f"[{_STYLED}]")
_IS_INVISIBLE = re.compile(f"[{_INVISIBLE}{_CONTROLS}]")
_WITH_BREAKS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
)  # scripts whose words a zero-width space separates


def _quotes(text: str, at: int, before: str, *, ended: bool) -> Match | None:
    """A run of typographic quotes. Next to wide characters they stay."""
    end = _QUOTE_RUN.match(text, at).end()  # type: ignore[union-attr]
    if end == len(text) and not ended:
        end -= 1  # the last one waits for the character after it
        if end == at:
            raise NeedMoreText
    elif _IS_WIDE.match(text, end):
        end -= 1
    if end == at or _IS_WIDE.match(before.rstrip(_QUOTE_CHARS)[-1:]):
        return None
    return Match(end, folded(text[at:end]))


def _character(text: str, at: int, before: str, said: str, *, ended: bool) -> Match | None:
    char = text[at]
    if char in _FOLD_CHARS:
        run = _FOLD_RUN.match(text, at)
        assert run is not None
        plain = folded(run[0])
        if run[0][0] in "\u00ab\u2039":  # French puts a space inside
            plain = plain.rstrip()
        elif run[0][-1] in "\u00bb\u203a":
            plain = plain.lstrip()
        return Match(_run_end(run, ended=ended), plain)
    if char in _QUOTES:
        return _quotes(text, at, before, ended=ended)
    if _IS_STYLED.match(char):
        styled = _STYLED_RUN.match(text, at)
        assert styled is not None
        return Match(styled.end(), _without_style(styled[0]))
    if _IS_INVISIBLE.match(char):
        if char == "\u200b" and before and _WITH_BREAKS.match(before[-1]):
            return None
        hidden = _INVISIBLE_RUN.match(text, at)
        assert hidden is not None
        return Match(hidden.end(), "")
    if char in _JOINERS or char == "\u20e3":
        keycap = _KEYCAP.match(text, at)
        if keycap:
            return Match(_run_end(keycap, ended=ended), "")
        return Match(at + 1, "") if before[-1:].isascii() else None
    found = _dash(text, at, before, said, ended=ended) or _emoji(text, at, before, ended=ended)
    if found is None and _ARROW.match(text, at):
        found = _separator(_ARROW, text, at, said, ended=ended)
    if found is None and char in "-=" and not ended and len(text) - at < 3:
        raise NeedMoreText
    return found
