"""The playback position: an estimate that never invents words and never splits one."""

import pytest

from oscine.speech.clock import PlaybackPosition, UtteranceTimeline, playback_position


def timeline(*segments: tuple[str, float], index: int = 0) -> UtteranceTimeline:
    """Segments, each with the second at which it ends."""
    one = UtteranceTimeline(index)
    for text, end_s in segments:
        one.sent_s = end_s
        one.end_segment(text)
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
def test_time_is_spread_evenly_over_each_segment(played_s: float, text: str) -> None:
    assert timeline(("One two. ", 2.0), ("Three four.", 4.0)).text_until(played_s) == text


def test_wide_characters_count_one_by_one_and_last_longer() -> None:
    assert timeline(("你好世界", 4.0)).text_until(2.0) == "你好"
    assert timeline(("你好 hello", 2.0)).text_until(1.0) == "你好"


def test_the_length_of_an_unfinished_segment_is_estimated_from_earlier_ones() -> None:
    one = timeline(("a" * 20, 4.0))  # 0.2 s per character, so 10 take 2 s
    one.sent_s, one.unfinished_text = 5.0, "aaaa aaaaa"
    assert one.text_until(5.0) == "a" * 20 + "aaaa"
    one.sent_s = 9.0  # longer than estimated: all of it may have been played
    assert one.text_until(9.0) == "a" * 20 + "aaaa aaaaa"


def test_text_whose_audio_was_not_sent_does_not_count() -> None:
    one = UtteranceTimeline(0, unfinished_text="Hello there, you")
    assert one.text_until(10.0) == ""
    one.sent_s = 0.5
    assert one.text_until(10.0) == "Hello"


@pytest.mark.parametrize(
    ("unplayed_s", "index", "played_s"), [(0.0, 1, 3.0), (2.5, 1, 0.5), (4.0, 0, 1.0), (9.0, None, 0.0)]
)
def test_a_player_far_behind_is_in_an_older_utterance(unplayed_s: float, index: int | None, played_s: float) -> None:
    first, second = timeline(("One", 2.0), index=0), timeline(("Two", 3.0), index=1)
    position = playback_position([UtteranceTimeline(2), second, first], unplayed_s)
    assert (position.utterance_index, position.played_s) == (index, played_s)


@pytest.mark.parametrize(
    ("unplayed_s", "of_first_s", "of_second_s"),
    [(0.0, 2.0, 3.0), (2.5, 2.0, 0.5), (3.0, 2.0, 0.0), (4.0, 1.0, 0.0), (9.0, 0.0, 0.0)],
)
def test_the_position_in_a_named_utterance_follows_the_clock(
    unplayed_s: float, of_first_s: float, of_second_s: float
) -> None:
    first, second = timeline(("One", 2.0), index=0), timeline(("Two", 3.0), index=1)
    timelines = [UtteranceTimeline(2), second, first]
    assert playback_position(timelines, unplayed_s, 0) == PlaybackPosition(first, of_first_s)
    assert playback_position(timelines, unplayed_s, 1) == PlaybackPosition(second, of_second_s)
    assert playback_position(timelines, unplayed_s, 7) == PlaybackPosition()


def test_the_clients_own_position_takes_precedence_up_to_the_end_of_the_sent_audio() -> None:
    first = timeline(("One two", 2.0))
    assert playback_position([first], 0.0, 0, 1.2) == PlaybackPosition(first, 1.2)
    assert playback_position([first], 0.0, None, 9.0) == PlaybackPosition(first, 2.0)
    assert playback_position([first], 0.0, 0, 1.2).text == "One"
