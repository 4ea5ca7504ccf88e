"""Word timestamps as the APIs of different servers spell them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from oscine.align.words import TimedWord
from oscine.speech.events import Words

_MAX_HEADER_BYTES = 4096  # proxies refuse larger ones


def word_event(segment: Words) -> dict[str, Any]:
    """The fields of our own events."""
    words = [{"word": word.word, "start_s": word.start_s, "end_s": word.end_s} for word in segment.words]
    return {"index": segment.index, "words": words, **({"warning": segment.warning} if segment.warning else {})}


def verbose_words(segments: Sequence[Words]) -> list[dict[str, Any]]:
    """Words as in OpenAI's verbose_json."""
    words = (word for segment in segments for word in segment.words)
    return [{"word": word.word, "start": word.start_s, "end": word.end_s} for word in words]


def millisecond_words(words: Sequence[TimedWord]) -> list[dict[str, Any]]:
    """vLLM-Omni's; words without times are left out."""
    return [
        {"word": word.word, "start_ms": round(1000 * word.start_s), "end_ms": round(1000 * word.end_s)}
        for word in words
        if word.start_s is not None and word.end_s is not None
    ]


def word_alignment(words: Sequence[TimedWord]) -> dict[str, Any]:
    """The `timestamp_info` that LiveKit's plug-in for Baseten reads; words without times are left out."""
    timed = [word for word in words if word.start_s is not None]
    return {
        "word_alignment": {
            "words": [word.word for word in timed],
            "word_start_times_seconds": [word.start_s for word in timed],
            "word_end_times_seconds": [word.end_s for word in timed],
        }
    }


def missing_times(segments: Sequence[Words]) -> str | None:
    """Why words have no times."""
    return next((segment.warning for segment in segments if segment.warning), None)


def word_headers(segments: Sequence[Words]) -> dict[str, str]:
    """vLLM-Omni's headers of a whole file."""
    name = "x-word-timestamps"
    if warning := missing_times(segments):
        return {f"{name}-omitted": " ".join(warning.encode("ascii", "replace").decode().split())}
    words = [word for segment in segments for word in segment.words]
    header = json.dumps(millisecond_words(words))  # ASCII: other characters are escaped
    if len(header) > _MAX_HEADER_BYTES:
        return {f"{name}-omitted": f"oversize; bytes={len(header)}; limit={_MAX_HEADER_BYTES}"}
    return {name: header}
