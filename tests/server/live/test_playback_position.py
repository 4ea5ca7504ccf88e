"""How much of a text was heard: an estimate that never makes words up, and never splits one."""

import pytest

from oscine.server.live.playback_position import Heard, listening_to, played_of


def heard(*parts: tuple[str, float], index: int = 0) -> Heard:
    """Parts, each with the second at which it ends."""
    one = Heard(index)
    for text, end_s in parts:
        one.sent_s = end_s
        one.end_part(text)
    return one


@pytest.mark.parametrize(
    ("played_s", "text"),
    [
        (0.0, ""),
        (0.9, "One"),  # of "One two. "
        (1.9, "One two."),
        (2.0, "One two."),
        (3.0, "One two. Three"),
        (4.0, "One two. Three four."),
        (99.0, "One two. Three four."),
    ],
)
def test_time_passes_evenly_over_each_part(played_s: float, text: str) -> None:
    assert heard(("One two. ", 2.0), ("Three four.", 4.0)).text_until(played_s) == text


def test_letters_of_a_wide_script_are_heard_one_by_one_and_last_longer() -> None:
    assert heard(("你好世界", 4.0)).text_until(2.0) == "你好"
    assert heard(("你好 hello", 2.0)).text_until(1.0) == "你好"


def test_the_length_of_a_part_that_was_cut_off_is_guessed_from_those_before_it() -> None:
    one = heard(("a" * 20, 4.0))  # 0.2 s a letter, so that 10 take 2 s
    one.sent_s, one.unfinished = 5.0, "aaaa aaaaa"
    assert one.text_until(5.0) == "a" * 20 + "aaaa"
    one.sent_s = 9.0  # longer than guessed: all of it can have been heard
    assert one.text_until(9.0) == "a" * 20 + "aaaa aaaaa"


def test_nothing_is_heard_that_was_not_sent() -> None:
    one = Heard(0, unfinished="Hello there, you")
    assert one.text_until(10.0) == ""
    one.sent_s = 0.5
    assert one.text_until(10.0) == "Hello"


def test_a_listener_far_behind_hears_an_older_utterance() -> None:
    first, second = heard(("One", 2.0), index=0), heard(("Two", 3.0), index=1)
    sent = [second, first]
    assert listening_to(sent, 0.0) == (second, 3.0)
    assert listening_to(sent, 2.5) == (second, 0.5)
    assert listening_to(sent, 4.0) == (first, 1.0)
    assert listening_to(sent, 9.0) == (None, 0.0)


@pytest.mark.parametrize(
    ("unplayed_s", "of_first_s", "of_second_s"),
    [(0.0, 2.0, 3.0), (2.5, 2.0, 0.5), (3.0, 2.0, 0.0), (4.0, 1.0, 0.0), (9.0, 0.0, 0.0)],
)
def test_of_an_utterance_that_is_named_as_much_was_heard_as_the_clock_has_it(
    unplayed_s: float, of_first_s: float, of_second_s: float
) -> None:
    first, second = heard(("One", 2.0), index=0), heard(("Two", 3.0), index=1)
    sent = [Heard(2), second, first]
    assert played_of(first, sent, unplayed_s) == of_first_s
    assert played_of(second, sent, unplayed_s) == of_second_s
