"""Normalisation and alignment: what counts as an error, and where it stands."""

import ast
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.evaluate import numbers
from oscine.evaluate import word_error_rate as words
from oscine.evaluate.word_error_rate import Alignment, align, errors, language_of, normalise, unit_of


def laid(wanted: str, heard: str) -> Alignment:
    return align(wanted.split(), heard.split())


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("Hello, World!", "hello world"),
        ("It’s Mr. Smith's.", "its mister smiths"),
        ("That costs $12.00, or 50%.", "that costs twelve dollars or fifty percent"),
        ("It is 5:00, the 3rd of May.", "it is five the third of may"),
        ("10,000 people at -4 degrees", "ten thousand people at minus four degrees"),
        ("A well-known and/or R&D", "a well known and or r and d"),
        ("I cannot, okay? Six o'clock.", "i can not ok six o clock"),
        ("3.14 and 10:30", "three point one four and ten thirty"),
        ("Don’t go,go…now—or\tnever\u00a0again", "dont go go now or never again"),
        ("<b>Bold</b>ly, a<br/>break; 3 < 5", "bold ly a break three five"),
        ("Søren’s café™ in Ｔｏｋｙｏ, 20 m²", "sorens cafe in tokyo twenty m two"),
        ("He is 5'10\", in the 90's", "he is five ten in the nineties"),
        ("-4 °C, −4℉, 5€", "minus four degrees celsius minus four degrees fahrenheit five euros"),
        ("...", ""),
    ],
)
def test_english_is_compared_as_it_is_said(written: str, said: str) -> None:
    assert normalise(written) == said.split()


@pytest.mark.parametrize(
    ("text", "heard"),
    [
        ("He came first and she came third.", "He came 1st and she came 3rd."),
        ("The twenty-first, the thirtieth, the one hundredth.", "The 21st, the 30th, the 100th."),
        ("About one million people.", "About 1,000,000 people."),
        ("Two point five million.", "2.5 million."),
        ("Three point five miles.", "3.5 miles."),
        ("It costs five million dollars.", "It costs $5 million."),
        ("It costs three dollars and fifty cents.", "It costs $3.50."),
        ("One thousand five hundred people.", "1500 people."),
        ("One thousand five hundred people.", "1,500 people."),
        ("Fifteen hundred people.", "1500 people."),
        ("Nineteen eighty-four.", "1984."),
        ("Two thousand and ten.", "2010."),
        ("Twenty ten.", "2010."),
        ("At five oh five.", "At 5:05."),
        ("Seven thirty.", "7:30."),
        ("One hundred and five cats.", "105 cats."),
        ("A hundred cats.", "100 cats."),
        ("Fifty pounds, twenty degrees, twenty euros.", "£50, 20°, €20."),
        ("The café was naïve.", "The cafe was naive."),
        ("You don't.", "You dont."),
        ("At five p.m.", "At 5 PM."),
    ],
)
def test_correct_speech_has_no_errors_however_it_was_written(text: str, heard: str) -> None:
    assert errors(normalise(text), normalise(heard)) == 0


@pytest.mark.parametrize(
    ("text", "heard", "wrong", "of"),
    [
        ("Well—maybe we should go tonight.", "Well, maybe we should go today.", 1, 6),
        ("Nobody knows where the old road ends.", "No body knows where the old root ends.", 1, 7),
        ("ice cream tonight", "icecream tonite", 1, 3),
        ("fifteen cats", "50 cats", 1, 2),
        ("the third", "the 3", 1, 2),
        ("one five hundred", "1500", 2, 3),
        ("fifteen hundred", "5100", 3, 2),
        ("nineteen eighty four", "1985", 1, 3),
        ("between 100 and 200", "between 102 hundred", 1, 6),
    ],
)
def test_wrong_speech_stays_wrong(text: str, heard: str, wrong: int, of: int) -> None:
    found = align(normalise(text), normalise(heard))
    assert (found.errors, found.wanted) == (wrong, of)


def test_a_transcript_of_thousands_of_digits_is_read() -> None:
    assert normalise("7" * 5000) == ["seven"] * 5000


@pytest.mark.parametrize(
    ("written", "language", "said"),
    [
        ("Grüße, Straße!", "de", ["grüsse", "strasse"]),
        ("L’été, c'est fini.", "fr", ["lété", "cest", "fini"]),
        ("¿Qué tal?", "es", ["qué", "tal"]),
        ("Ｆｕｌｌ　ｗｉｄｔｈ　１２", None, ["full", "width", "12"]),
        ("안녕하세요, 여러분.", "ko", ["안녕하세요", "여러분"]),
        ("हिन्दी है।", "hi", ["हिन्दी", "है"]),
        ("می\u200cخواهم", "fa", ["میخواهم"]),
        ("क्\u200dष ❤\ufe0f", "hi", ["क्ष"]),
        ("二〇一〇", "zh", ["二零一零"]),
        ("1st, 10² — 1,500", "de", ["1st", "102", "1", "500"]),
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
        ("1984.", None, "en"),
        ("Ｈｅｌｌｏ", None, "en"),
        ("二〇一〇", None, "zh"),
        ("سلام", None, None),
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
    ("wanted", "heard", "shown"),
    [
        ("nobody came", "no body come", "nobody=nobody came=come"),
        ("an ice cream now", "an icecream no", "an=an ice=ice cream=cream now=no"),
        ("the n a s a won", "the nasa one", "the=the n=n a=a s=s a=a won=one"),
        ("the usa won", "the u s a one", "the=the usa=usa won=one"),
        ("ever ywhere it is", "every where its", "ever=ever ywhere=ywhere it=its is="),
        ("a way out", "away", "a=a way=way out="),
        ("ice cream ice cream", "icecream", "ice=ice cream=cream ice= cream="),
        ("an icecream", "an ice cream ice cream", "an=an icecream=icecream =ice =cream"),
    ],
)
def test_words_that_differ_by_a_space_are_equal_beside_wrong_ones(wanted: str, heard: str, shown: str) -> None:
    assert " ".join(f"{word or ''}={other or ''}" for word, other in laid(wanted, heard).pairs) == shown


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
        ("ice cream now", "icecream icecream now", 1),
    ],
)
def test_words_said_again_are_told_from_other_added_ones(wanted: str, heard: str, repeated: int) -> None:
    assert laid(wanted, heard).repeated == repeated


def plain_distance(wanted: Sequence[str], heard: Sequence[str]) -> int:
    """From each place on: every step there is, and every join."""
    left = {(len(wanted), len(heard)): 0}
    for i in range(len(wanted), -1, -1):
        for j in range(len(heard), -1, -1):
            steps = [left[i + 1, j] + 1] if i < len(wanted) else []
            steps += [left[i, j + 1] + 1] if j < len(heard) else []
            steps += [left[i + 1, j + 1] + 1] if i < len(wanted) and j < len(heard) else []
            steps += [
                left[i + many, j + others]
                for many in range(1, min(4, len(wanted) - i) + 1)
                for others in range(1, min(4, len(heard) - j) + 1)
                if "".join(wanted[i : i + many]) == "".join(heard[j : j + others])
            ]
            left[i, j] = min(steps, default=0)
    return left[0, 0]


sentences = st.lists(st.sampled_from(["a", "b", "ab", "ba", "cat"]), max_size=8)


@given(sentences, sentences)
@settings(max_examples=300, deadline=None)
def test_an_alignment_is_shortest_and_holds_both_sides_whole(wanted: list[str], heard: list[str]) -> None:
    found = align(wanted, heard)
    same = "".join(wanted) == "".join(heard)
    assert found.errors == (0 if same else plain_distance(wanted, heard))
    assert [word for word, _ in found.pairs if word is not None] == wanted
    assert "".join(word for _, word in found.pairs if word is not None) == "".join(heard)


def test_a_text_of_400_words_is_aligned_within_a_second() -> None:
    wanted = ["abcdefghij"[at % 10] * (1 + at % 3) for at in range(400)]
    began = time.process_time()
    align(wanted, [*wanted[7:], "z"])
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("module", "ours"), [(words, {"oscine.evaluate.numbers"}), (numbers, set())])
def test_words_needs_the_standard_library_only(module: ModuleType, ours: set[str]) -> None:
    assert module.__file__ is not None
    imported = {
        name
        for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8")))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and name
    }
    others = {name for name in imported if name.split(".")[0] not in sys.stdlib_module_names}
    assert others == ours


def test_what_listens_needs_numpy_only() -> None:
    """It runs in other people's environments (training/recognise.py, --listen-with)."""
    code = (
        "import sys, oscine.evaluate.word_error_rate; assert 'numpy' not in sys.modules; import oscine.evaluate.transcriber_worker\n"
        "assert not {'typer', 'rich', 'soundfile', 'soxr', 'httptools', 'torch', 'av'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
