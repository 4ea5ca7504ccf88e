"""Text that arrives in pieces becomes token ids as soon as they can no longer change.

Ids of the pieces, joined, are the ids of the whole text, however it was cut: a token is given out only when the text
after it is known far enough. A word waits for the character behind it; a run of letters without any break (Chinese,
Japanese, Thai) waits for its next punctuation, digit or space, as its tokens may depend on all of it.
"""

from __future__ import annotations

import unicodedata

from oscine.prompt.tokenizer import Tokenizer

_ROLE_IDS = 2  # the role, and its newline, which takes in newlines that open the text


class IncrementalTokenizer:
    """One utterance's text. `role_ids` are known when the first body id is."""

    def __init__(self, tokenizer: Tokenizer, role: str = "assistant") -> None:
        self._tokenizer = tokenizer
        self._open = f"{role}\n"  # text whose ids may still change
        self.role_ids: list[int] = []

    def push(self, text: str) -> list[int]:
        """The body ids that this piece settles, possibly none."""
        # A cut may lie just before what is new, but not further back: that was looked for before.
        first = max(1, len(self._open))
        self._open += text
        cut = next((at for at in range(len(self._open) - 1, first - 1, -1) if _is_cut(self._open, at)), 0)
        settled, self._open = self._open[:cut], self._open[cut:]
        return self._body(settled)

    def finish(self) -> list[int]:
        """The rest: no more text comes."""
        settled, self._open = self._open, ""
        return self._body(settled)

    def _body(self, settled: str) -> list[int]:
        ids = self._tokenizer.encode(settled) if settled else []
        missing = _ROLE_IDS - len(self.role_ids)
        self.role_ids += ids[:missing]
        return ids[missing:]


def _is_cut(text: str, at: int) -> bool:
    """Whether a token always ends before text[at], whatever follows, and NFC joins nothing across. Sufficient, not
    necessary: each rule holds by the split in text.py, which never looks back."""
    # As NFC leaves them: some letters come apart into a letter and a mark.
    before, after = unicodedata.normalize("NFC", text[at - 1])[-1], unicodedata.normalize("NFC", text[at])[0]
    if not _begins_anew(after):
        return False
    if unicodedata.category(before)[0] == "N":
        return True  # a digit is always alone
    if before.isalpha():
        return not after.isalpha()
    # Newlines join the punctuation before them; any white space joins the white space before it.
    return _is_space(after) and not _is_space(before) and after not in "\r\n"


def _is_space(char: str) -> bool:
    return char.isspace() and not "\x1c" <= char <= "\x1f"  # these four are white space to Python alone


def _begins_anew(char: str) -> bool:
    """NFC never joins it to what comes before. Marks may join, as do the later parts of a Hangul syllable; and what
    our Unicode tables do not know may be anything."""
    if char.isascii():
        return True
    if unicodedata.category(char)[0] == "M" or unicodedata.category(char) == "Cn":
        return False
    return not ("\u1160" <= char <= "\u11ff" or "\U00016d63" <= char <= "\U00016d6a")
