"""Jumps of pitch and level where segments meet (benchmarks/joins.py)."""

import numpy as np

from benchmarks.joins import curves, figures, jump
from oscine.audio.pcm import CODEBOOKS
from oscine.speech.events import Speech


def spoken(f0_hz: float, level: float, frames: int = 20) -> Speech:
    """Two phones around a pause in the middle; all voiced."""
    codes = np.zeros((frames, CODEBOOKS), np.int64)
    quarters = round(f0_hz * 4 * 0.08)
    codes[:, 7], codes[:, 8], codes[:, 10] = quarters // 16, quarters % 16 * 4, 15 * 4
    codes[:, :4] = 5
    codes[frames // 2, :4] = 0
    audio = np.tile(np.float32([level, -level]), frames * 960)
    return Speech(audio, 24000, codes, "stop", 0)


def test_an_octave_and_twice_the_level_are_found() -> None:
    one, two = (curves(spoken(hz, level), "One. Two.") for hz, level in ((100, 0.1), (200, 0.2)))
    found = figures([[one, two]])
    assert abs(found["f0_semitones"]["joins"]["median"] - 12) < 0.5
    assert abs(found["level_db"]["joins"]["median"] - 6.02) < 0.1
    assert found["f0_semitones"]["pauses"] == {"count": 2, "median": 0.0, "p95": 0.0}
    assert found["pace_percent"] == {"count": 1, "median": 0.0}


def test_a_side_without_voiced_frames_has_no_jump() -> None:
    assert jump(np.full(20, np.nan), np.ones(20)) is None
