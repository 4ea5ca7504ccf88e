"""Learns what letters sound like, from words and their phonemes, and writes the table from which the server reads the
word that is being spoken (src/oscine/speech/word_position.py).

    python training/letters.py PHONEMES.tsv [--out src/oscine/demo/phones.json]

A word is aligned with its phones by the costs so far; the alignments give the next costs (hard EM).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import string
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
import paths
from codes import CODES, LAST_PHONE, PHONES
from phonemes import INNER_SPACE, UNMATCHED
from teacher import STRESS, symbols

_WORDS, _ROUNDS, _MAX_COUNT, _MAX_COST = 6000, 4, 20, 9.0
_MATCHED, _SKIPPED, _ADDED = range(3)

Values = npt.NDArray[np.float64]


def words_and_phones(path: Path) -> Counter[tuple[str, tuple[int, ...]]]:
    pairs: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        text, said = line.split("\t")
        if said.startswith(UNMATCHED):
            continue
        for word, phonemes in zip(text.lower().split(), said.split(" "), strict=True):
            alphabet = {symbol: number for number, symbol in enumerate((*STRESS, *phonemes))}  # any numbers
            phones = tuple(phone for phone, _ in groupby(symbols(phonemes, alphabet).phones.tolist()) if phone)
            letters = re.sub("[^a-z]", "", word)
            if letters and phones and INNER_SPACE not in phonemes:
                pairs[letters, phones] += 1
    return pairs


class Costs:
    """Negative logarithms of how often a letter is heard as each phone or not at all, and a phone has no letter."""

    def __init__(self, matched: Values, skipped: Values, added: Values) -> None:
        total = matched.sum(1) + skipped
        self.matched, self.skipped = -np.log(matched / total[:, None]), -np.log(skipped / total)
        self.added = -np.log(added / (added.sum() + matched.sum()))

    def align(self, letters: list[int], phones: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """(what, letter, phone) from the end to the beginning."""
        rows, columns = len(letters) + 1, len(phones) + 1
        cost, came = np.full((rows, columns), np.inf), np.zeros((rows, columns), int)
        cost[0, 0] = 0
        for i in range(rows):
            for j in range(columns):
                ways = (
                    cost[i - 1, j - 1] + self.matched[letters[i - 1], phones[j - 1]] if i and j else np.inf,
                    cost[i - 1, j] + self.skipped[letters[i - 1]] if i else np.inf,
                    cost[i, j - 1] + self.added[phones[j - 1]] if j else np.inf,
                )
                if i or j:
                    came[i, j] = int(np.argmin(ways))
                    cost[i, j] = ways[came[i, j]]
        steps = []
        while i or j:
            what = int(came[i, j])
            steps.append((what, letters[i - 1], phones[j - 1]))
            i, j = i - (what != _ADDED), j - (what != _SKIPPED)
        return steps


def learn(pairs: Counter[tuple[str, tuple[int, ...]]]) -> Costs:
    items = [([string.ascii_lowercase.index(char) for char in word], phones, min(count, _MAX_COUNT))
             for (word, phones), count in pairs.items()]  # fmt: skip
    draw, letters = random.Random(1), len(string.ascii_lowercase)
    matched = np.full((letters, CODES), 0.1)
    for word, phones, count in items:
        for place, letter in enumerate(word):
            matched[letter, phones[min(len(phones) - 1, int((place + 0.5) * len(phones) / len(word)))]] += count
    costs = Costs(matched, matched.sum(1) * 0.2 + 1, matched.sum(0) * 0.05 + 1)
    for _ in range(_ROUNDS):
        matched, skipped, added = np.full((letters, CODES), 0.05), np.full(letters, 0.5), np.full(CODES, 0.5)
        for word, phones, count in draw.sample(items, min(_WORDS, len(items))):
            for what, letter, phone in costs.align(word, phones):
                if what == _MATCHED:
                    matched[letter, phone] += count
                elif what == _SKIPPED:
                    skipped[letter] += count
                else:
                    added[phone] += count
        costs = Costs(matched, skipped, added)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phonemes", type=Path)
    parser.add_argument("--out", type=Path, default=paths.ROOT / "src/oscine/demo/phones.json")
    options = parser.parse_args()
    costs = learn(words_and_phones(options.phonemes))

    def written(values: Values) -> list[int]:
        return np.round(100 * np.minimum(values, _MAX_COST)).astype(int).tolist()

    rows = written(np.concatenate((costs.skipped[:, None], costs.matched), axis=1))
    table = {
        "codebooks": [*PHONES, LAST_PHONE],
        "added": written(costs.added),
        "letters": dict(zip(string.ascii_lowercase, rows, strict=True)),
    }
    options.out.write_text(json.dumps(table, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
