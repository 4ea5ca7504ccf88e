"""Converts sentences to phonemes in the teacher's alphabet. CPU only; needs hibari-tts (its grapheme-to-phoneme part).

    python training/phonemes.py SENTENCES OUT.tsv [--hibari FOLDER] [--workers 2]

A line of OUT is "text TAB phonemes". A space in the phonemes separates two words of text.split(), "_" stands for a
space inside a word ("1985" is read as two words). A leading "*": the words could not be matched with the text.
texts/pronunciations.txt corrects single words. Beside names of letters ("you ess"), words such as "you" are stressed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

INNER_SPACE, UNMATCHED = "_", "*"
_TABLE = Path(__file__).resolve().parent / "texts" / "pronunciations.txt"
_MARKS = ';:,.!?—…"()“”'
# Names of letters that are not frequent words, and those that are, as they sound among letters.
_LETTERS = {"ay", "dee", "ee", "eff", "gee", "aitch", "jay", "kay", "ell", "em", "en", "cue", "ess", "vee", "ex", "zee"}
_STRESSED = {"are": "ˈɑɹ", "you": "jˈu", "why": "wˈI"}
_MAX_PHONEMES = 440  # the teacher's limit is 510; above 400 its pace becomes uneven
_g2p: Any = None
_said: dict[str, str] = {}  # instead of what the tool says


def _open(folder: Path | None) -> None:
    global _g2p, _said
    _said = read_pronunciations()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if folder is not None:
        sys.path.insert(0, str(folder))
    from hibari.g2p import G2P

    _g2p = G2P()


def phonemize(text: str) -> str | None:
    """None if the text is too long or has no words."""
    from hibari.g2p.normalize import normalize

    text = " ".join(text.split())
    tokens = _g2p.phonemize_tokens(_g2p.tokenize(normalize(text)))
    said = "".join((one.phonemes or "").replace(" ", INNER_SPACE) + (" " if one.whitespace else "") for one in tokens)
    said = said.strip().replace("\t", " ")
    if not said or len(said) > _MAX_PHONEMES:
        return None
    words = said.split(" ")
    # "7:51" becomes two words.
    counts = [len(normalize(word).split()) for word in text.split()]
    if sum(counts) != len(words) or not all(words) or not all(counts):
        return UNMATCHED + " ".join(filter(None, words))
    left = iter(words)
    said_words = [INNER_SPACE.join(islice(left, count)) for count in counts]
    return " ".join(corrected(text.split(), said_words, _said))


def read_pronunciations() -> dict[str, str]:
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))


def corrected(words: list[str], said: list[str], table: dict[str, str]) -> list[str]:
    """The phonemes of the words, with those of the table where it has the word. Marks stay where they are."""
    cores = [word.strip(_MARKS + "'").lower() for word in words]
    done = []
    for place, (core, phonemes) in enumerate(zip(cores, said, strict=True)):
        better = table.get(core)
        if core in _STRESSED and not _LETTERS.isdisjoint(cores[max(0, place - 1) : place + 2]):
            better = _STRESSED[core]
        inner = phonemes.strip(_MARKS)
        done.append(phonemes.replace(inner, better) if better and inner else phonemes)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hibari", type=Path, help="folder of the unpacked wheel; default: the installed package")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    texts = options.sentences.read_text(encoding="utf-8").splitlines()
    begun = time.monotonic()
    with ProcessPoolExecutor(options.workers, initializer=_open, initargs=(options.hibari,)) as pool:
        read = list(pool.map(phonemize, texts, chunksize=64))
    lines = [f"{text}\t{said}" for text, said in zip(texts, read, strict=True) if said]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unmatched = sum(said.startswith(UNMATCHED) for said in read if said)
    print(
        f"{len(lines)} of {len(texts)} sentences in {time.monotonic() - begun:.0f} s; {unmatched} with unmatched words"
    )


if __name__ == "__main__":
    main()
