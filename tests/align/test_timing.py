"""A path through tokens and frames becomes the times of words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oscine.align.timing import settle, token_starts, word_times
from oscine.align.word_split import split_words

RATE_HZ = 16_000


def tone(*seconds: float) -> np.ndarray:
    """Sound and silence in turns, sound first."""
    pieces = [np.full(round(s * RATE_HZ), 0.0 if index % 2 else 0.3, np.float32) for index, s in enumerate(seconds)]
    return np.concatenate(pieces)


def test_a_token_begins_with_its_first_frame_on_the_path() -> None:
    path = [(0, 0), (0, 1), (1, 2), (2, 2), (2, 3), (3, 4)]
    assert token_starts(path, 3, 0.02) == pytest.approx([0.0, 0.04, 0.04, 0.08])


def test_a_word_lasts_from_its_first_letter_to_its_last() -> None:
    words = split_words("Well, yes")
    spans = [(0, 4), (4, 5), (6, 9)]  # Well / , / yes: the comma takes the pause
    assert word_times(words, spans, [0.1, 0.5, 0.9, 1.2]) == [(0.1, 0.5), (0.9, 1.2)]


def test_time_is_spread_over_the_characters_of_a_token() -> None:
    assert word_times(split_words("你好"), [(0, 2)], [1.0, 2.0]) == [(1.0, 1.5), (1.5, 2.0)]


def test_several_tokens_of_one_character_are_one() -> None:
    times = word_times(split_words("你好"), [(0, 1), (0, 1), (1, 2), (1, 2)], [0.0, 0.2, 0.4, 0.6, 0.8])
    assert times == [(0.0, 0.4), (0.4, 0.8)]


def test_a_mark_between_spaces_takes_no_time() -> None:
    assert word_times(split_words("a - b"), [(0, 1), (2, 3), (4, 5)], [0.0, 0.3, 0.5, 0.9])[1] == (0.3, 0.3)


def test_words_do_not_reach_into_pauses() -> None:
    samples = tone(0.5, 0.3, 0.5, 0.4)
    times = settle([(0.0, 0.6), (0.7, 1.5)], samples, RATE_HZ)
    assert times == [pytest.approx((0.0, 0.5)), pytest.approx((0.8, 1.3))]


@given(st.lists(st.tuples(st.floats(-1, 3), st.floats(-1, 3)), max_size=8), st.sampled_from([0.0, 0.3, 1.0]))
def test_times_ascend_within_the_audio(times: list[tuple[float, float]], sound_s: float) -> None:
    samples = tone(sound_s, 0.2, sound_s)
    flat = [time for pair in settle(times, samples, RATE_HZ) for time in pair]
    assert flat == sorted(flat)
    assert all(0 <= time <= len(samples) / RATE_HZ for time in flat)
