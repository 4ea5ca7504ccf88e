"""Tags of SSML in a text. `<sub>` and `<say-as>` change what is spoken; of the others, only the content is spoken.

Pauses (`<break>`) are in text/pauses.py; at the level *clean*, text/cleaning.py takes out all other tags.
"""

from __future__ import annotations

import html
import re

from oscine.text.cleaning import BLOCKS, NAMED_TAG, TagReader, ends_within_tag, folded
from oscine.text.english import quantities, words
from oscine.text.english.lexicon import CURRENCIES, SYMBOLS
from oscine.text.english.numbers import MAX_DIGITS, decimal, digits, ordinal
from oscine.text.options import TextLevel
from oscine.text.scanner import Match, NeedMoreText

_MAX_CHARS = 500  # of `sub` and `say-as`, tags included
_MAX_NAMES = 8  # in a warning

_ATTRIBUTES = r"""(?:[^<>"']++|"[^"]*"|'[^']*')*+"""
_ELEMENT = re.compile(
    rf"<(?P<name>sub|say-as)(?=\s)(?P<attributes>{_ATTRIBUTES})(?<!/)>(?P<content>[^<>]*+)</(?P=name)\s*>",
    re.IGNORECASE,
)
_ELEMENT_BEGUN = re.compile(
    rf"<(?:s(?:ub?|ay?-?a?s?)?|(?:sub|say-as)\s{_ATTRIBUTES}"
    r"""(?:"[^"]*|'[^']*|>[^<>]*+(?:<(?:/[a-z-]{0,6}\s*)?)?)?)?\Z""",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(r"""([\w:.\-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_CARDINAL = re.compile(rf"[-+]?\d(?:[\d,]{{0,{MAX_DIGITS}}}\d)?(?:\.\d{{1,9}})?")
_ORDINAL = re.compile(r"(\d{1,3}(?:,\d{3}){1,3}|\d{1,9})(?:st|nd|rd|th)?", re.IGNORECASE)
_MARKS = ".,;:!?"
# Next to words, what is written out needs a space. Of what follows, only what no other rule reads.
_WRITTEN_OUT = frozenset("0123456789").union(SYMBOLS, CURRENCIES)
_END = "</say-as>"
_FOLLOWING = rf"(?<={_END[:2]}(?i:{_END[2:-1]})>)[\d%$\u20ac\xa3\xa5\u20b9+@#\xd7\xf7\xb0\xb2\xb3\xb1/^\xa7-]"

_PLAIN = frozenset({"speak", "p", "paragraph", "s", "sentence", "w", "token", "sub", "say-as", "prosody"})
_WITHOUT_EFFECT = frozenset({"audio", "desc", "emphasis", "lang", "lexicon", "mark", "metadata", "phoneme", "voice"})
_TAGS = _PLAIN | _WITHOUT_EFFECT
_LETTERS = frozenset({"characters", "spell-out", "verbatim"})
_AS_READ = frozenset({"address", "currency", "date", "fraction", "name", "time", "unit"})  # as without a tag
_KINDS = _LETTERS | _AS_READ | {"cardinal", "digits", "number", "ordinal", "telephone"}
_INLINE = """a abbr b bdi bdo big button cite code col colgroup data del details dfn div em font i iframe img input ins
kbd label link meta nobr q rp rt ruby samp script select small source span strike strong style summary sup svg template
time title track tt u var video wbr"""
_KNOWN = _TAGS | BLOCKS | {"break", *_INLINE.split()}
_FIRST_LETTERS = rf"<(?=/?(?:[{''.join(sorted({tag[0] + tag[0].upper() for tag in _TAGS}))}]|\Z)|[!?])"
_NAME = re.compile(r"</?([A-Za-z\-]{0,16})")
_NAMED = re.compile(NAMED_TAG)
_MAY_BE_TAG = re.compile(rf"<(?:/?(?:{'|'.join(_TAGS)})[\s/>]|\?xml|!doctype)", re.IGNORECASE)
_NAMED_KIND = re.compile(r"""<say-as\s[^<>]{0,200}?interpret-as\s*=\s*["']([A-Za-z0-9:_\-]{1,40})["']""", re.IGNORECASE)


_PITCH = re.compile(r"<prosody\s[^<>]{0,200}?(pitch|contour|range|duration)\s*=", re.IGNORECASE)


def has_tags(text: str) -> bool:
    """Whether a tag of SSML may be in the text: a quick check."""
    return "<" in text and _MAY_BE_TAG.search(text) is not None


def is_tag_begun(text: str) -> bool:
    """Whether a text that waits is the beginning of a tag, or of an element that is read as a whole."""
    start = len(text) - len(text.lstrip())
    return start < len(text) and (_ELEMENT_BEGUN.match(text, start) is not None or ends_within_tag(text, start))


def tag_warning(text: str, level: TextLevel | None) -> str | None:
    """Names the tags that change nothing, and those that are unknown. At the level *raw*, these are spoken."""
    if "<" not in text:
        return None
    names = {name.lower() for name in set(_NAMED.findall(text))}
    kinds = {kind.lower() for kind in set(_NAMED_KIND.findall(text))} - _KINDS
    found = [
        _listed("without effect, only their content is spoken", [f"<{name}>" for name in names & _WITHOUT_EFFECT]),
        _listed("without effect in <prosody>", [*{name.lower() for name in _PITCH.findall(text)}]),
        _listed("unknown tags", [f"<{name}>" for name in names - _KNOWN if level != "raw"]),
        _listed("unknown values of interpret-as", [*kinds]),
    ]
    return "; ".join(filter(None, found)) or None


def _listed(what: str, names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_MAX_NAMES]) + (" and others" if len(names) > _MAX_NAMES else "")
    return f"{what}: {shown}" if names else ""


class SsmlRule:
    def __init__(self, level: TextLevel, *, is_english: bool) -> None:
        self.starts = rf"{_FIRST_LETTERS}|\s{{1,64}}(?=<|\Z)" if level == "raw" else rf"<(?=[sS]|\Z)|{_FOLLOWING}"
        self._level, self._in_words = level, is_english and level == "spoken"
        self._tags = TagReader(_TAGS)

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        if text[at].isspace():
            return self._tags.after_white(text, at, said, ended=ended)
        if text[at] != "<":
            return self._apart_from_words(text, at, said, ended=ended)
        if found := _ELEMENT.match(text, at, at + _MAX_CHARS):
            values = {
                name.lower(): html.unescape(one or other)
                for name, one, other in _ATTRIBUTE.findall(found["attributes"])
            }
            is_sub = found["name"].lower() == "sub"
            match = self._sub(found, values) if is_sub else self._say_as(found, values, said)
            if match is not None:
                return match
        elif not ended and len(text) - at < _MAX_CHARS and _ELEMENT_BEGUN.match(text, at):
            raise NeedMoreText
        if self._level != "raw" or not _is_ssml(text, at, ended=ended):
            return None  # the rule for cleaning takes tags out
        return self._tags.match(text, at, said, ended=ended)

    def _sub(self, found: re.Match[str], values: dict[str, str]) -> Match | None:
        return None if (alias := values.get("alias")) is None else Match(found.end(), self._clean(alias))

    def _say_as(self, found: re.Match[str], values: dict[str, str], said: str) -> Match | None:
        kind, form = values.get("interpret-as", "").lower(), values.get("format", "").lower()
        content = self._clean(html.unescape(found["content"]))
        if not kind or not content:
            return None
        if not self._in_words:
            return Match(found.end(), _apart(content, kind))
        spoken = _spoken_as(content, kind, form)
        if spoken is None:
            return Match(found.end(), content)
        is_glued = said[-1:] in _WRITTEN_OUT or found.string[found.start() - len(_END) : found.start()].lower() == _END
        return Match(found.end(), f" {spoken}" if is_glued else spoken, is_final=True)

    def _apart_from_words(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        """What follows a `say-as`."""
        if not self._in_words or not said[-1:].isalpha():
            return None
        if text[at] == "-" and not text[at + 1 : at + 2].isalnum():
            if at + 1 == len(text) and not ended:
                raise NeedMoreText
            return None
        return Match(at + 1, f" {text[at]}")

    def _clean(self, text: str) -> str:
        line = " ".join(text.replace("<", " ").split())
        return line if self._level == "raw" else folded(line)


def _is_ssml(text: str, at: int, *, ended: bool) -> bool:
    if text[at + 1 : at + 2] in ("!", "?"):
        return True  # what XML puts around it
    found = _NAME.match(text, at)
    assert found is not None
    name = found[1].lower()
    if not ended and found.end() == len(text) and any(tag.startswith(name) for tag in _TAGS):
        raise NeedMoreText
    return name in _TAGS


def _apart(content: str, kind: str) -> str:
    """Characters and digits one by one, in any language."""
    if kind in _LETTERS:
        return " ".join(content.replace(" ", ""))
    if any(map(str.isalpha, content)):
        return content
    core = content.rstrip(_MARKS)
    marks = content[len(core) :]
    if kind == "digits":
        return (" ".join(re.findall(r"\d", content)) or core) + marks
    if kind == "telephone":
        return (", ".join(" ".join(group) for group in re.findall(r"\+?\d+", content)) or core) + marks
    return content


def _spoken_as(content: str, kind: str, form: str) -> str | None:
    """The English words, or None to read it as the text around it."""
    if kind in _LETTERS:
        return words.spelled(content)
    core = content.rstrip(_MARKS)
    spoken = _number_as(core, kind, form)
    return spoken and spoken + content[len(core) :]


def _number_as(content: str, kind: str, form: str) -> str | None:
    if kind == "ordinal" and (found := _ORDINAL.fullmatch(content)):
        return ordinal(int(found[1].replace(",", "")))
    if any(map(str.isalpha, content)):
        return None
    if kind == "digits":
        return " ".join(digits(group) for group in re.findall(r"\d+", content)) or None
    if kind == "telephone":
        return quantities.phone(content) or None
    if kind in ("cardinal", "number") and _CARDINAL.fullmatch(content):
        sign = {"-": "minus ", "+": "plus "}.get(content[0], "")
        return sign + decimal(content.lstrip("+-"))
    return _date(content, form) if kind == "date" else None


def _date(content: str, form: str) -> str | None:
    """`form`: the order of its parts, such as "mdy" or "yyyy-mm-dd"."""
    order = "".join(dict.fromkeys(char for char in form if char in "dmy"))
    groups = re.findall(r"\d+", content)
    if re.fullmatch(r"\d{8}", content):
        order = order or "ymd"
        groups = re.findall(r"(\d{4})(\d\d)(\d\d)" if order[0] == "y" else r"(\d\d)(\d\d)(\d{4})", content)[0]
    parts = dict(zip(order, groups, strict=False))
    if len(groups) != len(order) or not {"d", "m"} <= parts.keys():
        return None
    if len(parts.get("y", "2000")) in (2, 4) and max(map(len, parts.values())) < 5:
        return quantities.date(int(parts["d"]), int(parts["m"]), parts.get("y"))
    return None
