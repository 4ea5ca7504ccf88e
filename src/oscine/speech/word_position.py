"""Finds where in its text a speech is, for codes that contain phones, as those of the demo voice do.

The phones so far are aligned with the letters of the text; the checkpoint's table (phones.json) says what each pair
costs. Neither a dictionary nor a recognizer is needed. 400 characters take some 10 ms.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oscine.audio.pcm import Codes
from oscine.text.spoken_text import SpokenText
from oscine.types import PhoneTable

_SILENCE = 0
_NEVER = 900  # a letter that is heard as silence, or a mark as a phone
_SILENT_SPACE, _SILENT_MARK, _PAUSE = 60, 0, 400  # silence at a space, at a mark, and inside a word
_SKIPPED_SPACE, _SKIPPED_MARK = 5, 30
_SKIPPED_CHAR = 200  # a digit, or a letter that the table does not have


def written_chars(table: PhoneTable, content: SpokenText, codes: Codes, slots: int) -> int:
    """The characters of `content.written` whose words are over after so many phones of the codes. A replacement counts
    when all of it was spoken."""
    chars = chars_spoken(table, content.spoken, codes, slots)
    for one in content.replacements:
        if one.spoken_start <= chars < one.spoken_end:
            return one.written_start
    return content.written_range(0, chars)[1] if chars else 0


def chars_spoken(table: PhoneTable, text: str, codes: Codes, slots: int) -> int:
    """The characters of the text whose words are over."""
    phones = codes[:, table.codebooks].reshape(-1)
    runs = phones[np.flatnonzero(np.diff(phones, prepend=-1))]  # neighbors that are equal are one phone
    heard = int(np.count_nonzero(np.diff(phones[: slots + 1], prepend=-1))) - 1  # the last one still sounds
    if slots >= len(phones):
        heard = len(runs)
    chars = _reach(table, text.lower(), runs[: max(heard, 0)])
    while 0 < chars < len(text) and text[chars - 1].isalnum() and text[chars].isalnum():
        chars -= 1  # a half-spoken word does not count
    while 0 < chars < len(text) and not (text[chars].isalnum() or text[chars].isspace()):
        chars += 1  # the mark after a word
    return chars


def _reach(table: PhoneTable, text: str, phones: npt.NDArray[np.int64]) -> int:
    """The end of the part of the text that fits these phones best."""
    skipped, pairs = _costs(table, text)
    skips = np.concatenate(((0,), np.cumsum(skipped)))
    added = np.array((_PAUSE, *table.added[1:]))
    cost = skips.copy()  # of the phones so far and each beginning of the text
    for phone in phones.tolist():
        stays = cost + added[phone]
        stays[1:] = np.minimum(stays[1:], cost[:-1] + pairs[:, phone])
        cost = np.minimum.accumulate(stays - skips) + skips
    return int(np.argmin(cost))


def _costs(table: PhoneTable, text: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """What it costs to skip each character, and to hear it as each phone."""
    rows = np.full((len(text), len(table.added)), _NEVER)
    skipped = np.full(len(text), _SKIPPED_CHAR)
    for place, char in enumerate(text):
        if known := table.letters.get(char):
            skipped[place], rows[place, 1:] = known[0], known[2:]
        elif char.isspace():
            skipped[place], rows[place, _SILENCE] = _SKIPPED_SPACE, _SILENT_SPACE
        elif not char.isalnum():
            skipped[place], rows[place, _SILENCE] = _SKIPPED_MARK, _SILENT_MARK
    return skipped, rows
