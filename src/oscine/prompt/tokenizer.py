"""Text to token ids with the checkpoint's own vocabulary, and the check that a text can be spoken at all.

Special tokens are not known here, so that "<|im_end|>" typed by a user is plain text: layout.py adds them by id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer

from oscine.types import CheckpointError, RequestError

# Qwen's own split. The official package, loading a local folder, silently takes Mistral's instead (a loader's patch for
# another model); the two differ on mixed-case words such as "iPhone". The model was surely trained with this one.
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


@dataclass(frozen=True, slots=True)
class TextTurn:
    """One chat turn between its im_start and im_end."""

    role_ids: list[int]  # the role and its newline; the newline id takes in newlines that open the text
    body_ids: list[int]


def check_text(text: object, what: str = "text") -> None:
    """The door for every text a user sends; `what` names its field."""
    if not isinstance(text, str):
        raise RequestError(f"{what} must be a string, got {type(text).__name__}", what)
    if not text.strip():
        found = f"only white space ({len(text)} characters)" if text else "empty"
        raise RequestError(f"{what} is {found}; give at least one word to speak", what)
    if (at := text.find("\0")) >= 0:
        raise RequestError(f"{what} has a NUL character at index {at}; remove it", what)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} has half a surrogate pair (U+{ord(text[error.start]):04X}) at index {error.start}, which is no "
            "character; it was cut or decoded wrongly on the way: send the whole character",
            what,
        ) from None


class Tokenizer:
    """Byte-level BPE. Building takes most of a second: make one per checkpoint. Encoding is safe from any thread."""

    def __init__(self, bpe: BpeTokenizer, vocab_size: int) -> None:
        self._bpe = bpe
        self.vocab_size = vocab_size  # every id is below

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        vocabulary = _read_vocabulary(folder / "vocab.json")
        merges = _read_merges(folder / "merges.txt", vocabulary)
        bpe = BpeTokenizer(models.BPE(vocab=vocabulary, merges=merges))
        bpe.normalizer = normalizers.NFC()
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return cls(bpe, max(vocabulary.values()) + 1)

    def encode(self, text: str) -> list[int]:
        return list(self._bpe.encode(text, add_special_tokens=False).ids)

    def encode_turn(self, role: str, text: str) -> TextTurn:
        # Role and text in one go, cut by count, as upstream does it: newlines that open the text melt into the role's
        # own newline id and leave the body.
        ids = self.encode(f"{role}\n{text}")
        return TextTurn(role_ids=ids[:2], body_ids=ids[2:])


def _read_text_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CheckpointError(
            f"the checkpoint has no {path.name} (looked for {str(path)!r}); its folder must hold the tokenizer files "
            "vocab.json and merges.txt: download it whole"
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
    # Without its byte's token a character would be dropped without a word.
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
