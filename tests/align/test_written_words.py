import pytest

from oscine.align.words import TimedWord, split_words, written_words
from oscine.text.preparation import prepare_text
from oscine.text.spoken_text import SpokenText
from oscine.types import TextOptions


def timed(text: str, **options: object) -> list[tuple[str, float | None, float | None]]:
    """Every word of the spoken text lasts a second."""
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
