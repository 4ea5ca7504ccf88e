"""Finds what is not spoken as it is written, in a text that arrives in pieces.

The scanner asks its rules at every place where one of them may begin. A rule that cannot decide yet, because the text
may go on, makes it wait. So the result does not depend on how the text was cut, and all other text passes at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

CONTEXT_CHARS = 200  # of the text before a match that rules may look at


class NeedMoreText(Exception):  # noqa: N818
    """A rule cannot decide before more text has come."""


@dataclass(frozen=True, slots=True)
class Match:
    """The text up to `end` is spoken as `spoken`; None: as it is written."""

    end: int
    spoken: str | None = None
    pause_s: float = 0.0  # instead of words
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the user's text."""

    written: str
    spoken: str | None = None  # None: as it is written
    pause_s: float = 0.0
    is_final: bool = False  # later stages leave it as it is

    @property
    def said(self) -> str:
        return self.written if self.spoken is None else self.spoken


class Rule(Protocol):
    @property
    def starts(self) -> str:
        """A regular expression of one character: the rule may match there, and nowhere else."""

    def match(self, text: str, at: int, *, ended: bool) -> Match | None:
        """Looks at `text[at:]`, and at CONTEXT_CHARS before it. Raises NeedMoreText unless `ended`."""


class TextScanner:
    def __init__(self, rules: Sequence[Rule]) -> None:
        """The first of two rules that match counts."""
        self._rules = [(re.compile(rule.starts), rule) for rule in rules]
        self._starts = re.compile("|".join(f"(?:{rule.starts})" for rule in rules))
        self._text, self._at = "", 0  # the text, and how much of it was returned

    @property
    def held(self) -> str:
        """The text that was not returned yet."""
        return self._text[self._at :]

    def push(self, text: str) -> Iterator[Piece]:
        """Raises what a rule raises, after the pieces before it."""
        return self._scan(text, ended=False)

    def finish(self, following: str = "") -> Iterator[Piece]:
        """The text so far is complete. The context stays for text that is pushed later."""
        return self._scan("", ended=True)

    def _scan(self, added: str, *, ended: bool) -> Iterator[Piece]:
        text = self._text = self._text[max(0, self._at - CONTEXT_CHARS) :] + added
        at = self._at = min(self._at, CONTEXT_CHARS)
        while at < len(text) and (start := self._starts.search(text, at)):
            try:
                match = self._match(text, start.start(), ended=ended)
            except NeedMoreText:
                break
            except Exception:
                yield from self._pass(start.start())
                raise
            if match is None:
                at = start.start() + 1
                continue
            yield from self._pass(start.start())
            yield Piece(text[start.start() : match.end], match.spoken, match.pause_s, match.is_final)
            at = self._at = match.end
        yield from self._pass(start.start() if at < len(text) and start else len(text))

    def _match(self, text: str, at: int, *, ended: bool) -> Match | None:
        asked = (rule for starts, rule in self._rules if starts.match(text, at))
        return next((found for rule in asked if (found := rule.match(text, at, ended=ended))), None)

    def _pass(self, end: int) -> Iterator[Piece]:
        if end > self._at:
            yield Piece(self._text[self._at : end])
            self._at = end
