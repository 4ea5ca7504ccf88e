"""Rate and volume of a part of a text: `<prosody rate="slow" volume="+6dB">...</prosody>`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isclose
from typing import NamedTuple

from oscine.errors import RequestError

MIN_FACTOR, MAX_FACTOR = 0.25, 4.0
_MAX_TAG_CHARS = 300
_MAX_DEPTH = 32

_ATTRIBUTES = r"""(?:[^<>"']++|"[^"]*"|'[^']*')*+"""
_TAG = re.compile(rf"<(?P<closing>/?)prosody(?=[\s/>])(?P<attributes>{_ATTRIBUTES})>", re.IGNORECASE)
_START = re.compile(r"</?prosody(?=[\s/>])", re.IGNORECASE)
_TAG_BEGUN = re.compile(
    rf"""<(?:/?(?:p(?:r(?:o(?:s(?:o(?:dy?)?)?)?)?)?)?|/?prosody(?=[\s/]){_ATTRIBUTES}(?:"[^"]*|'[^']*)?)\Z""",
    re.IGNORECASE,
)
_MARKS = re.compile(r"[.,;:!?\u2026\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]{0,4}")
_ATTRIBUTE = re.compile(r"""(?<![\w:.\-])(rate|volume)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.75}
_VOLUMES = {"x-soft": 0.35, "soft": 0.6, "medium": 1.0, "default": 1.0, "loud": 1.6, "x-loud": 2.5}
_NUMBER = re.compile(r"([+-]?)(\d{1,6}(?:\.\d{0,6})?|\.\d{1,6})\s*(%|db)?", re.IGNORECASE)


class Prosody(NamedTuple):
    """How the text from here on is spoken, as factors."""

    speed: float = 1.0
    volume: float = 1.0


PLAIN = Prosody()


def has_prosody(text: str) -> bool:
    """Whether a tag may be in the text: a quick check."""
    return "<" in text and "<prosody" in text.lower()


class ProsodyReader:
    """Divides a text, which may arrive in pieces, where rate or volume change."""

    def __init__(self) -> None:
        self.held = ""  # the beginning of a tag, perhaps
        self._open: tuple[Prosody, ...] = ()

    def push(self, text: str) -> Iterator[str | Prosody]:
        """Yields texts and changes in their order. Tags without an effect stay in the text, where later rules take them
        out. Raises RequestError for a value that cannot be read."""
        return self._read(text, ended=False)

    def finish(self) -> Iterator[str | Prosody]:
        """The text is complete."""
        return self._read("", ended=True)

    def _read(self, added: str, *, ended: bool) -> Iterator[str | Prosody]:
        text, self.held = self.held + added, ""
        at = begin = 0
        while start := _START.search(text, at):
            at = start.end()
            if (found := _TAG.match(text, start.start(), start.start() + _MAX_TAG_CHARS)) is None:
                continue
            before, tags = self._current, self._open
            if found["closing"]:
                self._open = self._open[:-1]
            elif not found["attributes"].rstrip().endswith("/"):
                self._enter(found)
            at = found.end()
            if self._current == before:
                continue
            marks = _MARKS.match(text, at) if found["closing"] else None  # they belong to the words before them
            if marks and marks.end() == len(text) and not ended:
                self._open, self.held, text = tags, text[found.start() :], text[: found.start()]
                break
            if said := text[begin : found.start()] + (marks[0] if marks else ""):
                yield said
            yield self._current
            begin = at = marks.end() if marks else at
        rest = text[begin:]
        if not (ended or self.held) and (begun := _TAG_BEGUN.search(rest, max(0, len(rest) - _MAX_TAG_CHARS))):
            self.held, rest = begun[0], rest[: begun.start()]
        if rest:
            yield rest

    @property
    def _current(self) -> Prosody:
        return self._open[-1] if self._open else PLAIN

    def _enter(self, found: re.Match[str]) -> None:
        if len(self._open) == _MAX_DEPTH:
            raise RequestError(f"more than {_MAX_DEPTH} <prosody> tags are open; close some", "text")
        values = {name.lower(): one or other for name, one, other in _ATTRIBUTE.findall(found["attributes"])}
        tag, outer = found[0], self._current
        speed = outer.speed * _factor(values.get("rate"), _RATES, tag)
        volume = outer.volume * _factor(values.get("volume"), _VOLUMES, tag, is_volume=True)
        self._open += (Prosody(_bounded(speed), 0.0 if volume == 0 else _bounded(volume)),)


def _bounded(factor: float) -> float:
    factor = min(max(factor, MIN_FACTOR), MAX_FACTOR)
    return 1.0 if isclose(factor, 1.0, abs_tol=1e-6) else factor


def _factor(value: str | None, words: dict[str, float], tag: str, *, is_volume: bool = False) -> float:
    """A word, a percentage, a factor, and of volumes decibels or "silent"."""
    value = "" if value is None else value.strip().lower()
    if not value:
        return 1.0
    if value in words or (is_volume and value == "silent"):
        return words.get(value, 0.0)
    if found := _NUMBER.fullmatch(value):
        sign, number, unit = found[1], float(found[2]), (found[3] or "").lower()
        signed = -number if sign == "-" else number
        if unit == "db" and is_volume:
            factor = 10 ** (min(signed, 100) / 20)
        elif unit == "%":
            factor = 1 + signed / 100 if sign else number / 100
        else:
            factor = -1.0 if unit or sign else number
        if MIN_FACTOR <= factor <= MAX_FACTOR:
            return factor
    name, units = ("volume", "+6dB, 50%, 0.5") if is_volume else ("rate", "80%, +20%, 1.2")
    raise RequestError(
        f"the {name} of {tag} cannot be used; write a word ({', '.join(words)}) or such as {units}, from "
        f"{MIN_FACTOR:g} to {MAX_FACTOR:g} times, or set markup to false to have the tag spoken",
        "text",
    )
