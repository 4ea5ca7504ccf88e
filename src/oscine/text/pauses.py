"""Pauses in a text: `<break time="500ms"/>`, and paragraphs if the request asks for pauses there."""

from __future__ import annotations

import re

from oscine.errors import RequestError
from oscine.text.scanner import Match, NeedMoreText

DEFAULT_BREAK_S = 0.5  # of <break/>
MAX_BREAK_S = 10.0
MAX_PAUSES_S = 600.0  # of one text
_MAX_TAG_CHARS = 64

_NAME = "<break"
_IS_TAG = re.compile(r"<break(?=[\s/>])", re.IGNORECASE)
_TAG = re.compile(
    r"""<break(?:\s+time\s*=\s*(["'])\s*(?P<number>\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*(?P<unit>ms|s)\s*\1)?\s*/?>""",
    re.IGNORECASE,
)
_CLOSING_TAG = "</break>"
_NEWLINES = r"\n\r\x85\u2028\u2029"
_PARAGRAPH = re.compile(rf"(?:\u2029|(?>\r\n|[{_NEWLINES}])[^\S{_NEWLINES}]*[{_NEWLINES}])")
_SPACES = re.compile(r"\s+")
_WHITE_CONTEXT = 32  # characters before a paragraph's end that show whether the text has begun


def has_break(text: str) -> bool:
    """Whether a tag may be in the text: a quick check."""
    return "<" in text and _NAME in text.lower()


class BreakRule:
    starts = r"<(?=[bB/]|\Z)"

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        if not _IS_TAG.match(text, at):
            return self._match_closing(text, at, ended=ended)
        end = text.find(">", at, at + _MAX_TAG_CHARS)
        if end < 0:
            if not ended and len(text) - at < _MAX_TAG_CHARS:
                raise NeedMoreText
            raise _malformed(text[at : at + _MAX_TAG_CHARS])
        tag = text[at : end + 1]
        found = _TAG.fullmatch(tag)
        if found is None:
            raise _malformed(tag)
        scale = 0.001 if (found["unit"] or "").lower() == "ms" else 1.0
        seconds = DEFAULT_BREAK_S if found["number"] is None else float(found["number"]) * scale
        if seconds > MAX_BREAK_S:
            raise RequestError(
                f"{tag} is longer than a break may be ({MAX_BREAK_S:g} s); use a shorter one, or several", "text"
            )
        return Match(end + 1, "", seconds)

    def _match_closing(self, text: str, at: int, *, ended: bool) -> Match | None:
        rest = text[at : at + len(_CLOSING_TAG)].lower()
        if rest == _CLOSING_TAG:
            return Match(at + len(rest), "")
        if not ended and (_CLOSING_TAG.startswith(rest) or _NAME.startswith(rest)):
            raise NeedMoreText
        return None


def _malformed(tag: str) -> RequestError:
    return RequestError(
        f'the tag {tag!r} cannot be read; write <break/>, <break time="500ms"/> or <break time="1.5s"/>, or set '
        "markup to false to have it spoken",
        "text",
    )


class ParagraphRule:
    """A blank line between two paragraphs."""

    starts = rf"[{_NEWLINES}]"

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        if not text[max(0, at - _WHITE_CONTEXT) : at].strip():
            return None  # the text has not begun, or this line break belongs to an earlier one
        spaces = _SPACES.match(text, at)
        assert spaces is not None
        end = spaces.end()
        if end == len(text):
            if not ended:
                raise NeedMoreText
            return None
        return Match(end, "", self._pause_s) if _PARAGRAPH.match(text, at) else None
