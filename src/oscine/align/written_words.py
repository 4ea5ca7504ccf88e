"""Times of the user's words where the model read others: "$5" was "five dollars"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oscine.align.words import TimedWord, Word, split_words
from oscine.text.spoken_text import SpokenText


@dataclass(slots=True)
class _Span:
    """Characters of the written text that are spoken together."""

    start: int
    end: int
    start_s: float
    end_s: float


def written_words(text: SpokenText, spoken: Sequence[TimedWord]) -> list[TimedWord]:
    """The words of `text.written`, from the times of those of `text.spoken`. Words that were replaced together share
    their time by length."""
    spans = _spans(text, spoken)
    found: list[TimedWord] = []
    words = split_words(text.written)
    while words and spans:
        span = spans.pop(0)
        ends = [index for index, word in enumerate(words) if word.start < span.end]
        if not ends:
            continue
        count = len(ends)
        while spans and spans[0].start < words[count - 1].end:  # the word goes on in the next span
            span = _Span(span.start, spans[0].end, span.start_s, spans.pop(0).end_s)
        found += _shared(words[:count], span)
        words = words[count:]
    last_s = found[-1].end_s if found else None
    return found + [TimedWord(word.text, last_s, last_s) for word in words]


def _spans(text: SpokenText, spoken: Sequence[TimedWord]) -> list[_Span]:
    spans: list[_Span] = []
    for word, timed in zip(split_words(text.spoken), spoken, strict=True):
        if timed.start_s is None or timed.end_s is None:
            continue
        start, end = text.written_range(word.start, word.end)
        if spans and start < spans[-1].end:
            spans[-1].end, spans[-1].end_s = max(end, spans[-1].end), timed.end_s
        else:
            spans.append(_Span(start, end, timed.start_s, timed.end_s))
    return spans


def _shared(words: Sequence[Word], span: _Span) -> list[TimedWord]:
    chars = sum(len(word.text) for word in words)
    found, at = [], 0
    for word in words:
        start_s, end_s = (
            span.start_s + (span.end_s - span.start_s) * passed / chars for passed in (at, at + len(word.text))
        )
        found.append(TimedWord(word.text, round(start_s, 3), round(end_s, 3)))
        at += len(word.text)
    return found
