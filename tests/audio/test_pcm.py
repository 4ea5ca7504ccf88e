from __future__ import annotations

import numpy as np
import pytest

from oscine.audio.pcm import amplitude, first_audible, rms_dbfs

FRAME = 1920


def test_the_level_of_a_square_wave_is_its_amplitude() -> None:
    square = np.full((1, FRAME), 32767, np.int16)
    assert rms_dbfs(square)[0] == pytest.approx(0.0, abs=0.01)
    assert rms_dbfs(square // 10)[0] == pytest.approx(-20.0, abs=0.01)
    assert rms_dbfs(np.zeros((2, FRAME), np.int16)).tolist() == [-80.0, -80.0]
    assert amplitude(0.0) == 32768 and amplitude(-20.0) == pytest.approx(3276.8)


@pytest.mark.parametrize("sample", [104, -104, -32768])
def test_the_first_audible_sample_lies_above_the_threshold(sample: int) -> None:
    pcm = np.zeros(FRAME, np.int16)
    pcm[50] = 103  # below -50 dBFS
    assert first_audible(pcm, -50.0) is None and first_audible(pcm[:0], -50.0) is None
    pcm[1000] = sample
    assert first_audible(pcm, -50.0) == 1000
