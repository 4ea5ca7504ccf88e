"""How long the speech of a text will be."""

from __future__ import annotations

import pytest

from oscine.engine.forecast import SpeechLength


def test_the_configured_length_is_the_first_guess() -> None:
    lengths = SpeechLength(4.0)
    assert lengths.frames_left(100) == 400 and lengths.frames_left(100, 390) == 10


def test_the_length_of_a_text_is_learned_from_a_few_speeches() -> None:
    lengths = SpeechLength(4.0)
    for text_ids in (20, 34, 2, 40, 25):
        lengths.add(text_ids, 2 * text_ids)
    assert lengths.frames_left(50) == pytest.approx(100, rel=0.25)
    for _ in range(40):
        lengths.add(30, 60)
    assert lengths.frames_left(50) == pytest.approx(100, rel=0.02)


def test_recent_speeches_count_more_than_old_ones() -> None:
    lengths = SpeechLength(4.0)
    for frames in [60] * 200 + [120] * 40:
        lengths.add(30, frames)
    assert lengths.frames_per_text_id == pytest.approx(4.0, rel=0.1)


def test_a_stream_that_outlives_its_estimate_is_near_its_end() -> None:
    assert 0 < SpeechLength(4.0).frames_left(100, 4000) < 10
