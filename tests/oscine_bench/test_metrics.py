"""Figures of hand-made timelines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oscine_bench.metrics import Timeline, gaps, onset, percentile, play, played_at, spread
from tests.oscine_bench.scripted import RATE_HZ, silence, speech


def pcm(*parts: bytes) -> np.ndarray:
    return np.frombuffer(b"".join(parts), "<i2")


def test_timely_audio_has_no_underrun() -> None:
    timeline = Timeline((0.1, 0.5, 0.9), (0.5, 1.0, 1.5))
    playback = play(timeline)
    assert (playback.deficit_s, playback.longest_stall_s, playback.stalls) == (0.0, 0.0, 0)


def test_a_chunk_that_arrives_when_the_last_one_ends_is_in_time() -> None:
    # 0.1 + 0.2 is not 0.3 in binary.
    assert play(Timeline((0.1, 0.1 + 0.2), (0.2, 0.4))).stalls == 0


def test_stalls_add_up_and_the_longest_is_reported() -> None:
    # Played 0.1-0.6; silent to 0.7; played to 1.2; silent to 1.5.
    playback = play(Timeline((0.1, 0.7, 1.5), (0.5, 1.0, 1.5)))
    assert playback.deficit_s == pytest.approx(0.1 + 0.3)
    assert playback.longest_stall_s == pytest.approx(0.3)
    assert playback.stalls == 2


def test_the_deficit_is_the_buffer_that_would_have_avoided_it() -> None:
    """Other benchmarks take the maximum of "played minus received" on a clock that never waits: the same number."""

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.01, 1)), min_size=1, max_size=30))
    def holds(steps: list[tuple[float, float]]) -> None:
        arrived = np.cumsum([step[0] for step in steps])
        audio = np.cumsum([step[1] for step in steps])
        behind = [float(arrived[i] - arrived[0] - audio[i - 1]) for i in range(1, len(steps))]
        playback = play(Timeline(tuple(arrived.tolist()), tuple(audio.tolist())))
        assert playback.deficit_s == pytest.approx(max([0.0, *behind]), abs=1e-4)

    holds()


def test_reads_without_audio_are_no_arrivals() -> None:
    timeline = Timeline.of([0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.5, 1.0])
    assert timeline == Timeline((0.2, 0.4), (0.5, 1.0))
    assert timeline.first_audio_s == 0.2


def test_a_response_within_five_milliseconds_came_at_once() -> None:
    assert Timeline((0.1, 0.105), (1.0, 2.0)).came_at_once
    assert not Timeline((0.1, 0.106), (1.0, 2.0)).came_at_once


def test_a_position_is_played_after_the_stalls_before_it() -> None:
    timeline = Timeline((0.1, 1.0, 9.0), (0.5, 1.0, 1.5))
    assert played_at(timeline, 0.0) == pytest.approx(0.1)
    assert played_at(timeline, 0.25) == pytest.approx(0.35)
    assert played_at(timeline, 0.75) == pytest.approx(1.25)  # the second chunk starts at 1.0
    with pytest.raises(ValueError, match="not within"):
        played_at(timeline, 1.5)


def test_gaps_are_between_arrivals_and_split_reads_are_one() -> None:
    assert gaps(Timeline((0.1, 0.1004, 0.3, 0.7), (0.1, 0.2, 0.3, 0.4))) == pytest.approx([0.1996, 0.4])


def test_audio_received_by_a_time() -> None:
    timeline = Timeline((0.1, 0.2), (0.5, 1.0))
    assert [timeline.received_by(at) for at in (-1.0, 0.05, 0.1, 0.15, 0.2, 9.0)] == [0, 0, 0.5, 0.5, 1.0, 1.0]


def test_without_silence_the_onset_is_zero() -> None:
    assert onset(pcm(speech(0.5)), RATE_HZ) == 0.0


@pytest.mark.parametrize("silent_s", [0.02, 0.08, 0.3, 0.65, 1.3, 2.0])
def test_the_onset_is_the_first_loud_window(silent_s: float) -> None:
    # The window that starts 10 ms before the noise is half full, and loud enough.
    assert onset(pcm(silence(silent_s), speech(0.5)), RATE_HZ) == pytest.approx(silent_s - 0.01)


def test_a_click_in_one_window_is_no_onset() -> None:
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


def test_audio_shorter_than_two_windows_has_no_onset() -> None:
    assert onset(pcm(speech(0.029)), RATE_HZ) is None
    assert onset(pcm(speech(0.03)), RATE_HZ) == 0.0
    assert onset(pcm(), RATE_HZ) is None


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(20, 0, -1)]
    assert [percentile(values, p) for p in (0, 5, 50, 90, 95, 99, 100)] == [1, 1, 10, 18, 19, 20, 20]
    assert percentile([3.0], 99) == 3.0


def test_no_values_have_no_spread() -> None:
    assert spread([]) is None
    percentiles = {"p50": 1.0, "p90": 3.0, "p95": 3.0, "p99": 3.0}
    assert spread([0.001, 0.003], scale=1e3) == percentiles | {"mean": 2.0, "least": 1.0, "most": 3.0}
