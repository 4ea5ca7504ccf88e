"""The sentences of the demo voice's training (training/texts.py)."""

import random
import re
from pathlib import Path
from types import ModuleType

HELD_OUT = Path(__file__).parent.parent.parent / "training" / "texts" / "heldout.txt"


def test_frequent_words_are_listed_more_often_and_only_with_a_known_pronunciation(
    texts: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "english-words.10").write_text("house\nit's\nteh\n")
    (tmp_path / "american-words.10").write_text("color\n")
    (tmp_path / "english-words.35").write_text("aardvark\nzymurgy\n")
    lexicon = {"house", "color", "aardvark"}
    listed = texts.listed_words(tmp_path, lexicon)
    assert sorted(set(listed)) == sorted(lexicon)
    assert listed.count("house") == listed.count("color") == 3 * listed.count("aardvark")


def test_natural_sentences_are_whole_and_of_known_words(texts: ModuleType, tmp_path: Path) -> None:
    lines = ['"It’s late," she said.', "Ye cannae go.", "no capital.", "No end", "Late."]
    (tmp_path / "natural.txt").write_text("\n".join(lines), encoding="utf-8")
    lexicon = {"it's", "late", "she", "said", "go", "no", "capital", "end"}
    assert list(texts.natural_sentences(tmp_path / "natural.txt", lexicon)) == ["It's late, she said."]


def test_no_held_out_sentence_is_learned_and_the_seed_decides_the_rest(texts: ModuleType) -> None:
    held_out = HELD_OUT.read_text(encoding="utf-8").splitlines()
    other = "Nobody has ever heard this one."
    made = [texts.make(200, 1, {"natural": [*held_out, other]}, ["house"]) for _ in range(2)]
    assert made[0] == made[1] and len(made[0]) == 200
    assert other in made[0] and not set(held_out) & set(made[0])


def test_two_of_five_numbers_are_round(texts: ModuleType) -> None:
    grammar = texts.Grammar(random.Random(1), [])
    numbers = [grammar.number() for _ in range(2000)]
    large = [number for number in numbers if len(number) > 2]
    assert all(re.fullmatch(r"[1-9]\d*", number) for number in numbers)
    assert 0.35 < sum(number.endswith("0") for number in large) / len(large) < 0.55
