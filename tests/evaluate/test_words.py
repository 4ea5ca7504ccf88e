"""Normalisation and alignment: what counts as an error, and where it stands."""

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.evaluate import words
from oscine.evaluate.words import Alignment, align, errors, language_of, normalise, number_words, unit_of


def laid(wanted: str, heard: str) -> Alignment:
    return align(wanted.split(), heard.split())


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (85, "eighty five"),
        (300, "three hundred"),
        (512, "five hundred twelve"),
        (1000, "one thousand"),
        (1066, "one thousand sixty six"),
        (1900, "nineteen hundred"),
        (1905, "nineteen oh five"),
        (1984, "nineteen eighty four"),
        (2009, "two thousand nine"),
        (2024, "twenty twenty four"),
        (12_345, "twelve thousand three hundred forty five"),
        (1_234_567, "one two three four five six seven"),
    ],
)
def test_numbers_are_said_as_people_say_them(number: int, said: str) -> None:
    assert number_words(number) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Hello, World!", "hello world"),
        ("It’s Mr. Smith's.", "its mister smiths"),
        ("That costs $12.00, or 50%.", "that costs twelve dollars or fifty percent"),
        ("It is 5:00, the 3rd of May.", "it is five the three of may"),
        ("10,000 people at -4 degrees", "ten thousand people at minus four degrees"),
        ("A well-known and/or R&D", "a well known and or r and d"),
        ("I cannot, okay? Six o'clock.", "i can not ok six o clock"),
        ("3.14 and 10:30", "three fourteen and ten thirty"),
        ("...", ""),
    ],
)
def test_english_is_compared_as_it_is_said(written: str, said: str) -> None:
    assert normalise(written) == said.split()


@pytest.mark.parametrize(
    ("written", "language", "said"),
    [
        ("Grüße, Straße!", "de", ["grüsse", "strasse"]),
        ("L’été, c'est fini.", "fr", ["lété", "cest", "fini"]),
        ("¿Qué tal?", "es", ["qué", "tal"]),
        ("Ｆｕｌｌ　ｗｉｄｔｈ　１２", None, ["full", "width", "12"]),
        ("안녕하세요, 여러분.", "ko", ["안녕하세요", "여러분"]),
        ("हिन्दी है।", "hi", ["हिन्दी", "है"]),
    ],
)
def test_other_languages_lose_case_and_punctuation_only(written: str, language: str | None, said: list[str]) -> None:
    assert normalise(written, language) == said


def test_scripts_without_spaces_are_compared_by_character() -> None:
    assert unit_of("谢谢，就这些。") == "character" and unit_of("Good morning") == "word"
    assert unit_of("你的 email") == "character" and unit_of("안녕하세요") == "word"
    assert normalise("请 打开 Wifi。", None, "character") == list("请打开wifi")


@pytest.mark.parametrize(
    ("text", "named", "code"),
    [
        ("Good morning", None, "en"),
        ("Good morning", "auto", "en"),
        ("Guten Morgen", "German", "de"),
        ("Guten Morgen", "de", "de"),
        ("早上好", None, "zh"),
        ("おはよう、東京", None, "ja"),
        ("안녕", None, "ko"),
        ("привет", None, "ru"),
        ("OK，没问题。", None, None),
        ("Hello こんにちは 東京", None, None),
        ("123", None, None),
    ],
)
def test_the_language_is_the_named_one_or_the_scripts(text: str, named: str | None, code: str | None) -> None:
    assert language_of(text, named) == code


def test_every_kind_of_error_is_counted() -> None:
    found = laid("the old cat sat on the mat", "the cat sat at the mat now")
    assert (found.wanted, found.errors, found.missing, found.added, found.exchanged) == (7, 3, 1, 1, 1)
    assert errors(["a", "b"], ["a", "b"]) == 0 and errors([], ["a", "b"]) == 2


def test_words_that_differ_by_a_space_are_equal() -> None:
    assert laid("an ice cream", "an icecream").errors == 0
    assert laid("every day", "everyday").pairs == (("every", "every"), ("day", "day"))


@pytest.mark.parametrize(
    ("wanted", "heard", "ends"),
    [
        ("one two three four", "one two", (0, 2)),
        ("one two three four", "three four", (2, 0)),
        ("one two three four", "one four", (0, 0)),
        ("one two three four", "one too", (0, 2)),
        ("no no no", "no", (0, 2)),
        ("one two", "", (2, 2)),
    ],
)
def test_missing_ends_are_found(wanted: str, heard: str, ends: tuple[int, int]) -> None:
    assert laid(wanted, heard).missing_ends == ends


def test_added_ends_are_found() -> None:
    assert laid("one two", "well now one two three").added_ends == (2, 1)
    assert laid("", "one two").added_ends == (2, 2)


@pytest.mark.parametrize(
    ("wanted", "heard", "repeated"),
    [
        ("the cat sat", "the the cat sat", 1),
        ("the cat sat", "the cat the cat sat", 2),
        ("the cat sat", "the cat the cat the cat sat", 4),
        ("the cat sat", "the cat sat the cat sat", 3),
        ("very very good", "very very good", 0),
        ("the cat sat", "the big cat sat", 0),
        ("the cat sat", "oh the cat sat", 0),
    ],
)
def test_words_said_again_are_told_from_other_added_ones(wanted: str, heard: str, repeated: int) -> None:
    assert laid(wanted, heard).repeated == repeated


def plain_distance(wanted: Sequence[str], heard: Sequence[str]) -> int:
    row = list(range(len(heard) + 1))
    for i, word in enumerate(wanted, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


sentences = st.lists(st.sampled_from(["a", "b", "cat"]), max_size=8)


@given(sentences, sentences)
@settings(max_examples=100, deadline=None)
def test_an_alignment_is_shortest_and_holds_both_sides_whole(wanted: list[str], heard: list[str]) -> None:
    found = align(wanted, heard)
    same = "".join(wanted) == "".join(heard)
    assert found.errors == (0 if same else plain_distance(wanted, heard))
    assert [word for word, _ in found.pairs if word is not None] == wanted
    if not same:
        assert [word for _, word in found.pairs if word is not None] == heard


def test_words_needs_the_standard_library_only() -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(Path(words.__file__).read_text(encoding="utf-8")))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and name
    }
    assert imported <= set(sys.stdlib_module_names), imported


def test_what_listens_needs_numpy_only() -> None:
    """It runs in other people's environments (training/recognise.py, --listen-with)."""
    code = (
        "import sys, oscine.evaluate.words; assert 'numpy' not in sys.modules; import oscine.evaluate.worker\n"
        "assert not {'typer', 'rich', 'soundfile', 'soxr', 'httptools', 'torch', 'av'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
