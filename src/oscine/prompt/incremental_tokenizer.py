"""Tokenizes streaming text: returns token ids as soon as later text cannot change them.

However the text is cut, the ids of the pieces, joined, are the ids of the whole text. A word waits for the character
after it; a run of letters without a break (Chinese, Japanese, Thai) waits for the next punctuation, digit or space,
because its tokens may depend on all of it.
"""

from __future__ import annotations

import unicodedata

from oscine.prompt.tokenizer import Tokenizer

_ROLE_IDS = 2  # the role and its newline, see TextTurn


class IncrementalTokenizer:
    """Tokenizes one utterance's text. `role_ids` are known when the first body id is."""

    def __init__(self, tokenizer: Tokenizer, role: str = "assistant") -> None:
        self._tokenizer = tokenizer
        self._pending = f"{role}\n"  # text whose ids may still change
        self.role_ids: list[int] = []

    def push(self, text: str) -> list[int]:
        """Returns the body ids that are final with this piece, possibly none."""
        # Earlier calls have searched the older text: a new cut is at the new piece's start or later.
        first = max(1, len(self._pending))
        self._pending += text
        cut = next((at for at in range(len(self._pending) - 1, first - 1, -1) if _is_cut(self._pending, at)), 0)
        final, self._pending = self._pending[:cut], self._pending[cut:]
        return self._body(final)

    def finish(self) -> list[int]:
        """Returns the remaining ids; no more text may follow."""
        final, self._pending = self._pending, ""
        return self._body(final)

    def _body(self, final: str) -> list[int]:
        ids = self._tokenizer.encode(final) if final else []
        missing = _ROLE_IDS - len(self.role_ids)
        self.role_ids += ids[:missing]
        return ids[missing:]


def _is_cut(text: str, at: int) -> bool:
    """Whether a token always ends before text[at] and NFC joins nothing across it, whatever text follows. Sufficient,
    not necessary: each rule follows from QWEN_SPLIT, which never looks back."""
    # NFC first: it decomposes some letters into a letter and a mark.
    before, after = unicodedata.normalize("NFC", text[at - 1])[-1], unicodedata.normalize("NFC", text[at])[0]
    if not _never_joins(after):
        return False
    if unicodedata.category(before)[0] == "N":
        return True  # a digit is always a token of its own
    if before.isalpha():
        return not after.isalpha()
    # Newlines join the punctuation before them; any white space joins the white space before it.
    return _is_space(after) and not _is_space(before) and after not in "\r\n"


def _is_space(char: str) -> bool:
    return char.isspace() and not "\x1c" <= char <= "\x1f"  # white space in Python, not in the regex


def _never_joins(char: str) -> bool:
    """Whether NFC never joins the character to the previous one. Marks and the later letters of a Hangul syllable may
    join; so may a character that is unknown to Python's Unicode tables."""
    if char.isascii():
        return True
    if unicodedata.category(char)[0] == "M" or unicodedata.category(char) == "Cn":
        return False
    return not ("\u1160" <= char <= "\u11ff" or "\U00016d63" <= char <= "\U00016d6a")
