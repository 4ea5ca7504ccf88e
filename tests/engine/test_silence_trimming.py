from __future__ import annotations

import random

import numpy as np
import pytest

from oscine.config import TrimConfig
from oscine.engine.trimming import SilenceTrimmer

RATE_HZ, FRAME = 24000, 1920
KEEP = 240  # 10 ms


def trim(pcm: np.ndarray, pieces: list[int], config: TrimConfig = TrimConfig()) -> np.ndarray:  # noqa: B008
    trimmer = SilenceTrimmer(config, RATE_HZ, FRAME, enabled=config.enabled)
    out = [trimmer.push(piece) for piece in np.split(pcm, np.cumsum(pieces)[:-1])]
    out.append(trimmer.finish())
    trimmed = np.concatenate(out)
    assert len(trimmed) + trimmer.dropped_samples == len(pcm)
    return trimmed


def speech_after(samples: int, frames: int = 12, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pcm = rng.integers(-20, 21, frames * FRAME).astype(np.int16)  # below -55 dBFS
    pcm[samples:] = rng.integers(-8000, 8001, len(pcm) - samples)
    pcm[samples : samples + 1] = 5000
    return pcm


@pytest.mark.parametrize("onset", [0, 1, 100, KEEP, KEEP + 1, FRAME - 1, FRAME, FRAME + 77, 5 * FRAME + 3])
def test_audio_begins_ten_milliseconds_before_the_onset(onset: int) -> None:
    pcm = speech_after(onset)
    np.testing.assert_array_equal(trim(pcm, [FRAME] * 12), pcm[max(0, onset - KEEP) :])


def test_the_result_does_not_depend_on_how_frames_arrive() -> None:
    rng = random.Random(2)
    for seed in range(20):
        pcm = speech_after(rng.randrange(9 * FRAME), seed=seed)
        pieces = [rng.randint(1, 3) for _ in range(12)]
        pieces = [FRAME * count for count in pieces]
        while sum(pieces) > len(pcm):
            pieces.pop()
        pieces.append(len(pcm) - sum(pieces))
        np.testing.assert_array_equal(trim(pcm, pieces), trim(pcm, [FRAME] * 12))


def test_no_more_than_the_limit_is_dropped() -> None:
    pcm = np.zeros(12 * FRAME, np.int16)
    assert len(trim(pcm, [FRAME] * 12, TrimConfig(max_frames=3))) == 9 * FRAME
    assert len(trim(pcm, [FRAME] * 12, TrimConfig(max_frames=0))) == 12 * FRAME


def test_a_silent_stream_keeps_its_last_ten_milliseconds() -> None:
    assert len(trim(np.zeros(2 * FRAME, np.int16), [FRAME] * 2)) == KEEP


def test_trimming_can_be_disabled() -> None:
    pcm = speech_after(3 * FRAME)
    np.testing.assert_array_equal(trim(pcm, [FRAME] * 12, TrimConfig(enabled=False)), pcm)


def test_later_silence_is_left_alone() -> None:
    pcm = np.zeros(6 * FRAME, np.int16)
    pcm[10], pcm[-1] = 9000, 9000
    np.testing.assert_array_equal(trim(pcm, [FRAME] * 6), pcm)


def test_the_lowest_sample_value_is_audible() -> None:
    pcm = np.zeros(FRAME, np.int16)
    pcm[1000] = -32768
    np.testing.assert_array_equal(trim(pcm, [FRAME]), pcm[1000 - KEEP :])
