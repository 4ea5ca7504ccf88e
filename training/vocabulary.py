"""Learns a small byte-level BPE vocabulary from the sentences and writes it in the published layout.

python training/vocabulary.py WORK [--sizes demo]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import paths  # noqa: F401
from instructions import INSTRUCTIONS
from sizes import BY_NAME
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from oscine.prompt.tokenizer import QWEN_SPLIT

_ROLES = ("assistant", "user")  # must be one token each
_SPARE = 12  # entries reserved for the roles


def learn(sentences: list[str], tokens: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """(entry -> id, merges in order of rank), at most `tokens` entries."""
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=tokens - _SPARE, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    bpe.train_from_iterator(sentences, trainer)
    vocabulary: dict[str, int] = bpe.get_vocab()
    merges = _merges(bpe)
    for role in _ROLES:
        # Join its pieces by merges of the lowest priority, which affect nothing else.
        first, *rest = bpe.encode(role, add_special_tokens=False).tokens
        for piece in rest:
            if first + piece not in vocabulary:
                vocabulary[first + piece] = len(vocabulary)
            merges.append((first, piece))
            first += piece
    assert len(vocabulary) <= tokens, (len(vocabulary), tokens)
    return vocabulary, merges


def _merges(bpe: Tokenizer) -> list[tuple[str, str]]:
    import json

    merges = json.loads(bpe.to_str())["model"]["merges"]
    return [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in merges]


def write(folder: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    from random_checkpoint import write_vocabulary

    folder.mkdir(parents=True, exist_ok=True)
    ordered = dict(sorted(vocabulary.items(), key=lambda entry: entry[1]))
    write_vocabulary(folder, ordered, [" ".join(merge) for merge in merges])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--sizes", choices=tuple(BY_NAME), default="demo")
    options = parser.parse_args()
    sentences = (options.work / "sentences.txt").read_text(encoding="utf-8").splitlines()
    sentences += [instruction for wordings in INSTRUCTIONS.values() for instruction in wordings]
    vocabulary, merges = learn(sentences, BY_NAME[options.sizes].text_tokens)
    write(options.work / "vocabulary", vocabulary, merges)
    print(f"{len(vocabulary)} entries, {len(merges)} merges")


if __name__ == "__main__":
    main()
