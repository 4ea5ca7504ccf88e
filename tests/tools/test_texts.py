"""The sentences of the demo voice's training (training/texts.py, written.py, phonemes.py)."""

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


def test_every_template_can_be_filled_and_no_sign_is_left_to_the_voice(texts: ModuleType) -> None:
    grammar = texts.Grammar(random.Random(1), [])
    written = [texts.spoken(grammar.sentence("written")) for _ in range(400)]
    assert not any("{" in text for text in written)
    plain = [text for text in written if re.fullmatch(r"[A-Za-z ,.;:?!'-]+", text)]
    assert len(plain) / len(written) > 0.9, set(written) - set(plain)
    for section in ("names", "answers", "questions", "lists"):
        assert all("{" not in grammar.sentence(section) for _ in range(200))


def test_a_sentence_with_other_numbers_or_letters_is_still_held_out(written: ModuleType) -> None:
    held_out = written.HeldOut(["The ticket is twelve dollars seventy-five.", "Ask the eye tea department.", "No."])
    assert held_out.has("The ticket is ninety dollars.")
    assert held_out.has("Ask the aitch are department!")
    assert not held_out.has("The kitchen is twelve meters long.")
    assert not held_out.has("No.")


def test_no_text_of_the_written_set_is_learned(texts: ModuleType, written: ModuleType) -> None:
    lines = written.heldout_texts(texts.TEXTS)
    sentences = [line for line in lines if len(written.kinds(line)) > 1]
    made = texts.make(300, 1, {"natural": list(sentences)}, ["house"])
    assert len(sentences) > 300 and not set(sentences) & set(made)


def test_letters_are_pronounced_by_their_names(phonemes: ModuleType) -> None:
    table = phonemes.read_pronunciations()
    words, said = ["two", "ay,", "you", "ess", "are."], ["tˈu", "ˈI,", "ju", "ˈɛs", "ɑɹ."]
    assert phonemes.corrected(words, said, table) == ["tˈu", "ˈA,", "jˈu", "ˈɛs", "ˈɑɹ."]
    assert phonemes.corrected(["how", "are", "you?"], ["hˌW", "ɑɹ", "ju?"], table) == ["hˌW", "ɑɹ", "ju?"]
