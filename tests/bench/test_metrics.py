"""Figures on hand-made timelines: every number can be checked with a pencil."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine.bench.metrics import Timeline, gaps, onset, percentile, play, played_at, spread
from tests.bench.scripted import RATE_HZ, silence, speech


def pcm(*parts: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(parts), "<i2")


def test_sound_that_comes_in_time_has_no_underrun() -> None:
    timeline = Timeline((0.1, 0.5, 0.9), (0.5, 1.0, 1.5))
    playback = play(timeline)
    assert (playback.deficit_s, playback.longest_stall_s, playback.stalls) == (0.0, 0.0, 0)


def test_a_chunk_that_comes_just_as_the_last_ends_is_in_time() -> None:
    # 0.1 + 0.2 is not 0.3 in binary; that is no underrun.
    assert play(Timeline((0.1, 0.1 + 0.2), (0.2, 0.4))).stalls == 0


def test_two_late_chunks_add_up_and_the_longer_is_named() -> None:
    # Played 0.1-0.6; silent to 0.7; played to 1.2; silent to 1.5.
    playback = play(Timeline((0.1, 0.7, 1.5), (0.5, 1.0, 1.5)))
    assert playback.deficit_s == pytest.approx(0.1 + 0.3)
    assert playback.longest_stall_s == pytest.approx(0.3)
    assert playback.stalls == 2


def test_the_deficit_is_what_should_have_been_buffered() -> None:
    """Other benchmarks keep the worst of "played minus received" on a clock that never waits: the same number."""

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 1)), min_size=1, max_size=30))
    def holds(steps: list[tuple[float, float]]) -> None:
        arrived = np.cumsum([step[0] for step in steps])
        heard = np.cumsum([step[1] for step in steps])
        behind = [float(arrived[i] - arrived[0] - heard[i - 1]) for i in range(1, len(steps))]
        playback = play(Timeline(tuple(arrived.tolist()), tuple(heard.tolist())))
        assert playback.deficit_s == pytest.approx(max([0.0, *behind]), abs=1e-4)

    holds()


def test_what_brings_no_sound_is_no_arrival() -> None:
    timeline = Timeline.of([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 1.0])
    assert timeline == Timeline((0.2, 0.4), (0.5, 1.0))
    assert timeline.first_audio_s == 0.2


def test_an_answer_within_five_milliseconds_came_whole() -> None:
    assert Timeline((0.1, 0.105), (1.0, 2.0)).came_whole
    assert not Timeline((0.1, 0.106), (1.0, 2.0)).came_whole


def test_a_moment_is_heard_after_the_stalls_before_it_and_not_those_after() -> None:
    timeline = Timeline((0.1, 1.0, 9.0), (0.5, 1.0, 1.5))
    assert played_at(timeline, 0.0) == pytest.approx(0.1)
    assert played_at(timeline, 0.25) == pytest.approx(0.35)
    assert played_at(timeline, 0.75) == pytest.approx(1.25)  # the second chunk plays from 1.0 on
    with pytest.raises(ValueError, match="not within"):
        played_at(timeline, 1.5)


def test_gaps_are_between_arrivals_and_split_reads_are_one() -> None:
    assert gaps(Timeline((0.1, 0.1004, 0.3, 0.7), (0.1, 0.2, 0.3, 0.4))) == pytest.approx([0.1996, 0.4])


def test_sound_received_by_a_time() -> None:
    timeline = Timeline((0.1, 0.2), (0.5, 1.0))
    assert [timeline.received_by(at) for at in (-1.0, 0.05, 0.1, 0.15, 0.2, 9.0)] == [0, 0, 0.5, 0.5, 1.0, 1.0]


def test_speech_begins_at_once_where_there_is_no_silence() -> None:
    assert onset(pcm(speech(0.5)), RATE_HZ) == 0.0


@pytest.mark.parametrize("silent_s", [0.02, 0.08, 0.3, 0.65, 1.3, 2.0])
def test_the_onset_is_the_first_window_that_holds_sound(silent_s: float) -> None:
    # The window that begins 10 ms before the sound is half full of it, and loud enough.
    assert onset(pcm(silence(silent_s), speech(0.5)), RATE_HZ) == pytest.approx(silent_s - 0.01)


def test_a_click_is_no_onset() -> None:
    # 1 ms of noise lies in two successive windows only where they overlap; placed in the middle of one, it is in one.
    click = pcm(silence(0.2145), speech(0.001), silence(0.2845)).copy()
    assert onset(click, RATE_HZ) == pytest.approx(0.20)  # it is in the windows from 0.20 and from 0.21
    one_window = pcm(silence(0.5)).copy()
    one_window[:100] = 8000  # only the window from 0.00 holds it
    assert onset(one_window, RATE_HZ) is None


def test_a_constant_is_silence_and_so_is_faint_noise() -> None:
    assert onset(np.full(RATE_HZ, 12000, np.int16), RATE_HZ) is None
    threshold = 32768 * 10 ** (-45 / 20)
    square = np.tile(np.array([1, -1], np.int16), RATE_HZ // 2)
    assert onset(square * np.int16(np.floor(threshold)), RATE_HZ) is None
    assert onset(square * np.int16(np.ceil(threshold)), RATE_HZ) == 0.0


def test_sound_shorter_than_two_windows_has_no_onset() -> None:
    assert onset(pcm(speech(0.029)), RATE_HZ) is None
    assert onset(pcm(speech(0.03)), RATE_HZ) == 0.0
    assert onset(pcm(), RATE_HZ) is None


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(20, 0, -1)]
    assert [percentile(values, p) for p in (0, 5, 50, 90, 95, 99, 100)] == [1, 1, 10, 18, 19, 20, 20]
    assert percentile([3.0], 99) == 3.0


def test_what_was_never_measured_has_no_spread() -> None:
    assert spread([]) is None
    percentiles = {"p50": 1.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    assert spread([0.001, 0.003], scale=1e3) == percentiles | {"mean": 2.0, "least": 1.0, "most": 3.0}
