"""Finds what is not spoken as it is written, in a text that arrives in pieces.

One expression finds the places where a rule may begin, and which rule. A rule that cannot decide before more text has
come makes the scanner wait. So the result does not depend on how the text was cut, and all other text passes at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

CONTEXT_CHARS = 200  # of the text before a match that rules may look at


class NeedMoreText(Exception):  # noqa: N818
    """A rule cannot decide before more text has come."""


class Match(NamedTuple):
    """The text up to `end` is spoken as `spoken`, or as it is written if that is None."""

    end: int
    spoken: str | None = None
    pause_s: float = 0.0  # instead of words
    is_final: bool = False


class Piece(NamedTuple):  # not a dataclass: a text may have 200,000 of them
    """A piece of the user's text."""

    written: str
    spoken: str | None = None  # None: as it is written
    pause_s: float = 0.0
    is_final: bool = False  # later stages leave it as it is

    @property
    def said(self) -> str:
        return self.written if self.spoken is None else self.spoken


_new = tuple.__new__  # twice as quick as the constructor of a named tuple


class Rule(Protocol):
    @property
    def starts(self) -> str:
        """A regular expression without groups. The rule may match where it matches, and nowhere else."""

    def match(self, text: str, at: int, said: str, *, ended: bool) -> Match | None:
        """Looks at `text[at:]`, and at CONTEXT_CHARS before it. `said`: as many of what is spoken before it since the
        last pause. Raises NeedMoreText unless `ended`."""


class TextScanner:
    def __init__(self, rules: Sequence[Rule]) -> None:
        """The first of two rules that match counts."""
        self._rules = [(re.compile(rule.starts), rule.match) for rule in rules]
        # The group that matches is the first rule that may begin there.
        self._starts = re.compile("|".join(f"({rule.starts})" for rule in rules))
        self._text, self._at = "", 0  # the text, and how much of it was returned
        self._said = ""

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
        at = passed = self._at = min(self._at, CONTEXT_CHARS)
        search, rules, end, said = self._starts.search, self._rules, len(text), self._said
        while at < end and (start := search(text, at)):
            found = start.start()
            since = found - CONTEXT_CHARS
            before = (said + text[passed if passed > since else since : found])[-CONTEXT_CHARS:]
            try:
                first = (start.lastindex or 1) - 1
                match = rules[first][1](text, found, before, ended=ended)
                if match is None and first + 1 < len(rules):
                    match = self._later_match(text, found, before, first + 1, ended=ended)
            except NeedMoreText:
                end = found
                break
            except Exception:
                if found > passed:
                    yield Piece(text[passed:found])
                self._at = found
                raise
            if match is None:
                at = found + 1
                continue
            if found > passed:
                yield _new(Piece, (text[passed:found], None, 0.0, False))
            at, spoken, pause_s, is_final = match
            passed = at
            said = "" if pause_s else before + (text[found:at] if spoken is None else spoken)
            yield _new(Piece, (text[found:at], spoken, pause_s, is_final))
        if end > passed:
            yield Piece(text[passed:end])
        self._at = max(end, passed)
        self._said = (said + text[passed : self._at])[-CONTEXT_CHARS:]

    def _later_match(self, text: str, at: int, said: str, first: int, *, ended: bool) -> Match | None:
        """The match of the rules from `first` on."""
        for starts, match in self._rules[first:]:
            if starts.match(text, at) and (found := match(text, at, said, ended=ended)):
                return found
        return None
