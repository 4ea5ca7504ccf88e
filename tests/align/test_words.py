"""The words that timestamps report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscine.align.words import split_words

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
