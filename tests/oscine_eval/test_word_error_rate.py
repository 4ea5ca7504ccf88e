"""Normalization and alignment: which differences are errors, and where they are."""

import subprocess
import sys

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_normalizer.english import EnglishTextNormalizer

from oscine_eval.optional import MissingLibraryError
from oscine_eval.word_error_rate import Alignment, align, check_libraries, language_code, normalize, unit_of


def align_words(reference: str, transcript: str) -> Alignment:
    return align(reference.split(), transcript.split())


@pytest.mark.parametrize(
    ("text", "transcript"),
    [
        ("Hello, World!", "hello world"),
        ("It’s Mr. Smith.", "it is mister smith"),
        ("The twenty-first, the thirtieth, the one hundredth.", "The 21st, the 30th, the 100th."),
        ("About one million people.", "About 1,000,000 people."),
        ("It costs three dollars and fifty cents.", "It costs $3.50."),
        ("One thousand five hundred people.", "1500 people."),
        ("Fifteen hundred people.", "1,500 people."),
        ("Nineteen eighty-four.", "1984."),
        ("Two thousand and ten.", "Twenty ten."),
        ("One hundred and five cats.", "105 cats."),
        ("The café was naïve.", "The cafe was naive."),
        ("You don't.", "You do not."),
        ("My favourite colour.", "My favorite color."),
        ("<b>Bold</b> words.", "bold words"),
    ],
)
def test_spellings_of_the_same_english_words_are_equal(text: str, transcript: str) -> None:
    assert align(normalize(text), normalize(transcript)).errors == 0


def test_bracketed_text_counts() -> None:
    """Whisper's normalizer alone deletes it: in subtitles it describes sounds."""
    assert " ".join(normalize("The museum (closed on [all] Mondays).")) == "the museum closed on all mondays"


@pytest.mark.parametrize(
    ("text", "transcript", "errors", "words"),
    [
        ("Well—maybe we should go tonight.", "Well, maybe we should go today.", 1, 6),
        ("fifteen cats", "50 cats", 1, 2),
        ("the third", "the 3", 1, 2),
        ("ice cream tonight", "icecream tonight", 2, 3),
    ],
)
def test_wrong_words_are_errors(text: str, transcript: str, errors: int, words: int) -> None:
    found = align(normalize(text), normalize(transcript))
    assert (found.errors, found.reference_length) == (errors, words)


@pytest.mark.parametrize(
    ("text", "transcript"),
    [
        ("The train leaves at 7:30 from platform twelve, doesn't it?", "the train leaves 7 30 from the platform 12"),
        ("She said: “It's 20% colour, okay?”", "she said it is twenty percent color okay"),
        ("No.", ""),
    ],
)
def test_rates_are_those_of_jiwer_with_whispers_normalizer(text: str, transcript: str) -> None:
    normalizer = EnglishTextNormalizer()
    found = align(normalize(text), normalize(transcript))
    assert found.errors / found.reference_length == jiwer.wer(normalizer(text), normalizer(transcript))


@given(st.text(max_size=60), st.sampled_from(["en", "zh", None]), st.sampled_from(["word", "character"]))
@settings(max_examples=300, deadline=None)
def test_any_text_can_be_normalized(text: str, language: str | None, unit: str) -> None:
    assert not any(" " in word for word in normalize(text, language, unit))


def test_a_transcript_of_thousands_of_digits_can_be_normalized() -> None:
    assert "".join(normalize("7" * 5000)) == "7" * 5000


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        ("Grüße, Straße!", "de", ["grüße", "straße"]),
        ("L’été, c'est fini.", "fr", ["l", "été", "c", "est", "fini"]),
        ("¿Qué tal?", "es", ["qué", "tal"]),
        ("Ｆｕｌｌ　ｗｉｄｔｈ　１２", None, ["full", "width", "12"]),
        ("안녕하세요, 여러분.", "ko", ["안녕하세요", "여러분"]),
    ],
)
def test_other_languages_lose_case_and_punctuation_only(text: str, language: str | None, words: list[str]) -> None:
    assert normalize(text, language) == words


def test_scripts_without_spaces_are_compared_by_character() -> None:
    assert unit_of("谢谢，就这些。") == "character" and unit_of("Good morning") == "word"
    assert unit_of("你的 email") == "character" and unit_of("안녕하세요") == "word"
    assert normalize("请 打开 Wifi。", None, "character") == list("请打开wifi")
    assert normalize("二〇一〇", "zh", "character") == list("二零一零")


@pytest.mark.parametrize(
    ("text", "name", "code"),
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
def test_the_language_is_named_or_follows_from_the_script(text: str, name: str | None, code: str | None) -> None:
    assert language_code(text, name) == code


def test_every_kind_of_error_is_counted() -> None:
    found = align_words("the old cat sat on the mat", "the cat sat at the mat now")
    assert (found.reference_length, found.errors) == (7, 3)
    assert (found.deletions, found.insertions, found.substitutions) == (1, 1, 1)
    assert align([], ["a", "b"]).errors == 2 and align(["a", "b"], []).errors == 2 and align([], []).errors == 0


@pytest.mark.parametrize(
    ("reference", "transcript", "ends"),
    [
        ("one two three four", "one two", (0, 2)),
        ("one two three four", "three four", (2, 0)),
        ("one two three four", "one four", (0, 0)),
        ("one two three four", "one too", (0, 2)),
        ("no no no", "no", (0, 2)),
        ("one two", "", (2, 2)),
    ],
)
def test_deletions_at_the_ends_are_found(reference: str, transcript: str, ends: tuple[int, int]) -> None:
    assert align_words(reference, transcript).deleted_ends == ends


def test_insertions_at_the_ends_are_found() -> None:
    assert align_words("one two", "well now one two three").inserted_ends == (2, 1)
    assert align_words("", "one two").inserted_ends == (2, 2)


@pytest.mark.parametrize(
    ("reference", "transcript", "repetitions"),
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
def test_repetitions_are_distinguished_from_other_insertions(reference: str, transcript: str, repetitions: int) -> None:
    assert align_words(reference, transcript).repetitions == repetitions


sentences = st.lists(st.sampled_from(["a", "b", "ab", "ba", "cat"]), max_size=8)


@given(sentences, sentences)
@settings(max_examples=200, deadline=None)
def test_an_alignment_holds_both_sides_whole(reference: list[str], transcript: list[str]) -> None:
    found = align(reference, transcript)
    assert [word for word, _ in found.pairs if word is not None] == reference
    assert [word for _, word in found.pairs if word is not None] == transcript
    assert all(reference is not None or transcript is not None for reference, transcript in found.pairs)


@pytest.mark.parametrize("library", ["jiwer", "whisper_normalizer.english"])
def test_a_missing_library_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from oscine_eval import word_error_rate

    monkeypatch.setitem(sys.modules, library, None)
    word_error_rate.normalizer.cache_clear()
    with pytest.raises(MissingLibraryError, match=r"is not installed .*: pip install 'oscine\[eval\]'$"):
        check_libraries()


def test_the_transcriber_process_imports_no_library_but_numpy() -> None:
    """It runs in other environments (--transcriber-python)."""
    ours = "{'typer', 'rich', 'soundfile', 'soxr', 'httptools', 'torch', 'av', 'msgspec', 'jiwer'}"
    code = f"import sys, oscine_eval.transcriber_process\nassert not {ours} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
