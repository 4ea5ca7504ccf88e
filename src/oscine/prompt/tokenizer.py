"""Tokenizes text with the checkpoint's own vocabulary.

Special tokens are not known here, so "<|im_end|>" in a user's text is plain text; layout.py adds special ids.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer

from oscine.errors import CheckpointError

# Qwen's own split. When it loads a local folder, the official package silently uses Mistral's instead (a loader patch
# for another model); they differ on mixed-case words such as "iPhone". The model was presumably trained with this one.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
# The same expression for ASCII text, which Python's own `re` can match.
_ASCII_SPLIT = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\na-zA-Z0-9]?[a-zA-Z]+"
    r"|[0-9]"
    r"| ?[^\sa-zA-Z0-9]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
    re.ASCII,
)
_MAX_CACHED_WORDS = 2**15
_MAX_CACHED_CHARS = 32  # of a word


@dataclass(frozen=True, slots=True)
class TextTurn:
    """One chat turn between its im_start and im_end."""

    role_ids: list[int]  # the role and its newline, merged with newlines at the start of the text
    body_ids: list[int]


class Tokenizer:
    """Byte-level BPE. Creating one takes most of a second. Encoding is thread-safe.

    Words are encoded independently of each other, so the ids of words in ASCII texts are cached: most words occur
    again.
    """

    def __init__(self, bpe: BpeTokenizer, vocab_size: int) -> None:
        self._bpe = bpe
        self.vocab_size = vocab_size  # the largest id plus one
        self._word_bpe = BpeTokenizer(bpe.model)
        self._word_bpe.pre_tokenizer = _bytes_of_words()
        self._cached_ids = lru_cache(_MAX_CACHED_WORDS)(self._word_ids)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        vocabulary = _read_vocabulary(folder / "vocab.json")
        merges = _read_merges(folder / "merges.txt", vocabulary)
        bpe = BpeTokenizer(models.BPE(vocab=vocabulary, merges=merges))
        bpe.normalizer = normalizers.NFC()
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"), _bytes_of_words()]
        )
        return cls(bpe, max(vocabulary.values()) + 1)

    def encode(self, text: str) -> list[int]:
        if not text.isascii():
            return list(self._bpe.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []  # ASCII is normalized
        for word in _ASCII_SPLIT.findall(text):
            ids += (self._cached_ids if len(word) <= _MAX_CACHED_CHARS else self._word_ids)(word)
        return ids

    def _word_ids(self, word: str) -> list[int]:
        return self._word_bpe.encode(word, add_special_tokens=False).ids

    def encode_turn(self, role: str, text: str) -> TextTurn:
        # Encoded together and split by count, as upstream does: newlines at the start of the text merge into the
        # role's newline id.
        ids = self.encode(f"{role}\n{text}")
        return TextTurn(role_ids=ids[:2], body_ids=ids[2:])


def _bytes_of_words() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _read_text_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"the checkpoint has no {path.name} (looked for {str(path)!r}); its folder must hold the tokenizer files "
            "vocab.json and merges.txt: download all of it"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{str(path)!r} cannot be used: {reason}; download it again")


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        vocabulary: Any = json.loads(_read_text_file(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON ({error})") from error
    if not isinstance(vocabulary, dict) or not all(type(rank) is int and rank >= 0 for rank in vocabulary.values()):
        raise _damaged(path, "it is not a table of token to id")
    # BPE silently drops a character whose bytes have no token.
    missing = [letter for letter in pre_tokenizers.ByteLevel.alphabet() if letter not in vocabulary]
    if missing:
        raise _damaged(path, f"{len(missing)} of the 256 single-byte tokens are missing")
    return vocabulary


def _read_merges(path: Path, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(_read_text_file(path).split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise _damaged(path, f"line {number} ({line[:40]!r}) does not join two tokens of vocab.json into a third")
        merges.append((left, right))
    if not merges:
        raise _damaged(path, "it holds no merges")
    return merges


# --- Streaming text: returns token ids as soon as later text cannot change them.
#
# However the text is cut, the joined ids of the pieces are the ids of the whole text. A word waits for the character
# after it; a run of letters without a break (Chinese, Japanese, Thai) waits for the next punctuation, digit or space,
# because its tokens may depend on all of it.

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
