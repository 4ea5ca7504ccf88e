"""The words that timestamps report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscine.align.word_split import TimedWord, split_words, written_words
from oscine.text.options import TextOptions
from oscine.text.preparation import prepare_text
from oscine.text.spoken_text import SpokenText

CASES = {
    "Hello, world - it's  5 & more.": ["Hello,", "world", "-", "it's", "5", "&", "more."],
    "你好，世界！": ["你", "好，", "世", "界！"],
    "「Tom」说GPT-4、东京": ["「Tom」", "说", "GPT-4、", "东", "京"],
    "東京タワーへ行きましょう。": ["東", "京", "タ", "ワー", "へ", "行", "き", "ま", "しょ", "う。"],
    "안녕하세요 세계": ["안녕하세요", "세계"],
    "（笑） ...": ["（笑）", "..."],
    "": [],
}


@pytest.mark.parametrize("text", CASES)
def test_a_text_is_split_at_spaces_and_between_characters_without_spaces(text: str) -> None:
    assert [word.text for word in split_words(text)] == CASES[text]


@given(st.text(alphabet=st.sampled_from("ab 1,.-「」（）你好かしょーイ\n\U0001f600&é̀")))
def test_every_character_but_white_space_is_in_one_word(text: str) -> None:
    words = split_words(text)
    assert "".join(word.text for word in words) == "".join(text.split())
    assert all(text[word.start : word.end] == word.text for word in words)


@pytest.mark.parametrize(("word", "spoken"), [("“Hello,”", (1, 6)), ("—", None), ("&", (0, 1)), ("$5.", (0, 2))])
def test_marks_around_a_word_take_no_time(word: str, spoken: tuple[int, int] | None) -> None:
    assert split_words(word)[0].spoken == spoken


# --- written words ---


def timed(text: str, **options: object) -> list[tuple[str, float | None, float | None]]:
    """Returns the written words with times; every word of the spoken text lasts a second."""
    given = TextOptions(normalize=True, **options)  # type: ignore[arg-type]
    (prepared,) = prepare_text(text, given, "english")
    assert isinstance(prepared, SpokenText)
    spoken = [TimedWord(word.text, at, at + 1.0) for at, word in enumerate(split_words(prepared.spoken))]
    return [(word.word, word.start_s, word.end_s) for word in written_words(prepared, spoken)]


def test_words_that_stay_keep_their_times() -> None:
    assert timed("Hello there, you.") == [("Hello", 0, 1), ("there,", 1, 2), ("you.", 2, 3)]


def test_a_number_has_the_time_of_all_its_words() -> None:
    assert timed("Pay ($5.50), now") == [("Pay", 0, 1), ("($5.50),", 1, 4), ("now", 4, 5)]


def test_words_that_are_replaced_together_share_their_time_by_length() -> None:
    words = timed("on May 5, 1984 we")  # "on May fifth, nineteen eighty-four we"
    assert words == [("on", 0, 1), ("May", 1, 2.333), ("5,", 2.333, 3.222), ("1984", 3.222, 5), ("we", 5, 6)]


@pytest.mark.parametrize(
    "text",
    ["Oscine costs $5 in New York.", "3-5 km", "x5 5x $5/h", "2026-11-16, 14:30", "1 2 3", "5km-run at 5 km, 5!"],
)
def test_every_word_of_the_user_has_a_time_and_none_overlaps(text: str) -> None:
    words = timed(text, pronunciations={"New York": "the big apple town", "costs": "c"})
    assert [word for word, _, _ in words] == [word.text for word in split_words(text)]
    times = [time for _, start_s, end_s in words for time in (start_s, end_s)]
    assert None not in times and times == sorted(times, key=lambda time: time or 0.0)
