"""Formats timed words as subtitles: SRT and WebVTT."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oscine.align.word_split import TimedWord, is_unspaced
from oscine.errors import RequestError, unknown_choice

SubtitleFormat = Literal["srt", "vtt"]
FORMATS: tuple[SubtitleFormat, ...] = ("srt", "vtt")

# Limits of readable subtitles, from broadcasters' guidelines.
_LINE_CHARS = 42
_MAX_CHARS = 76  # fits into two lines
_MAX_CUE_S = 6.0
_PAUSE_S = 0.8  # starts another cue
_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’」』)）]*$")


@dataclass(frozen=True, slots=True)
class Cue:
    """Text shown on the screen for a time."""

    text: str
    start_s: float
    end_s: float
    speaker: str | None = None  # in a dialogue


def subtitle_format(path: Path) -> SubtitleFormat:
    """Reads the format from the suffix of a file name."""
    suffix = path.suffix.lower().removeprefix(".")
    for name in FORMATS:
        if suffix == name:
            return name
    raise RequestError(f"{str(path)!r}: {unknown_choice('subtitle format', suffix, FORMATS)}", "subtitles")


def subtitles(words: Sequence[TimedWord], form: SubtitleFormat) -> str:
    """Formats the words as a file. Words without times are left out."""
    blocks = []
    for number, cue in enumerate(cues(words), 1):
        mark = "," if form == "srt" else "."
        times = f"{_clock(cue.start_s, mark)} --> {_clock(cue.end_s, mark)}"
        # "-->" inside a text would end it, and WebVTT reads < and & as markup.
        text, speaker = (part.replace("-->", "→") for part in (cue.text, cue.speaker or ""))
        if form == "vtt":
            text, speaker = (_escaped(part) for part in (text, speaker))
        if speaker:
            text = f"<v {speaker}>{text}" if form == "vtt" else f"{speaker}: {text}"
        blocks.append(f"{number}\n{times}\n{text}\n")
    return ("WEBVTT\n\n" if form == "vtt" else "") + "\n".join(blocks)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def cues(words: Sequence[TimedWord]) -> list[Cue]:
    """Groups words of one speaker into sentences, or into pieces of long sentences."""
    found: list[Cue] = []
    text, start_s, end_s = "", 0.0, 0.0
    speaker: str | None = None
    for word in words:
        if word.start_s is None or word.end_s is None:
            continue
        joined = join_words(text, word.word)
        too_long = len(joined) > _MAX_CHARS or word.end_s - start_s > _MAX_CUE_S
        paused = word.start_s - end_s > _PAUSE_S
        if text and (too_long or paused or word.speaker != speaker or _SENTENCE_END.search(text)):
            found.append(_cue(text, start_s, end_s, speaker))
            text = ""
        speaker = word.speaker
        joined, start_s = (joined, start_s) if text else (word.word, word.start_s)
        text, end_s = joined, word.end_s
    if text:
        found.append(_cue(text, start_s, end_s, speaker))
    return found


def join_words(text: str, word: str) -> str:
    """Joins words with a space, unless both sides belong to scripts without spaces."""
    return text + word if not text or (is_unspaced(text[-1]) and is_unspaced(word[0])) else f"{text} {word}"


def _cue(text: str, start_s: float, end_s: float, speaker: str | None) -> Cue:
    if len(text) <= _LINE_CHARS:
        return Cue(text, start_s, end_s, speaker)
    # Two lines of about the same length.
    for width in range(len(text) // 2, _LINE_CHARS + 1):
        lines = textwrap.wrap(text, width, break_on_hyphens=False)
        if len(lines) <= 2:
            break
    return Cue("\n".join(lines), start_s, end_s, speaker)


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
