"""The features that Whisper was trained on."""

import importlib.util

import numpy as np
import pytest

from oscine.align.whisper import HOP, RATE_HZ, log_mel
from tests.align.whisper_packages import whisper_packages


@pytest.mark.parametrize("samples", [0, 100, HOP, 1600, RATE_HZ + 77])
@pytest.mark.parametrize("mels", [80, 128])
def test_there_is_a_frame_every_ten_milliseconds(samples: int, mels: int) -> None:
    assert log_mel(np.zeros(samples, np.float32), mels).shape == (mels, samples // HOP)


@pytest.mark.slow
@pytest.mark.parametrize("mels", [80, 128])
def test_features_equal_those_of_faster_whisper(mels: int) -> None:
    file = whisper_packages() / "faster_whisper" / "feature_extractor.py"
    spec = importlib.util.spec_from_file_location("feature_extractor", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    samples = np.random.default_rng(1).normal(0, 0.1, 3 * RATE_HZ + 77).astype(np.float32)
    np.testing.assert_allclose(log_mel(samples, mels), module.FeatureExtractor(mels)(samples, padding=0), atol=1e-5)


def test_quiet_parts_are_cut_off_eight_decades_below_the_loudest() -> None:
    features = log_mel(np.concatenate([np.full(RATE_HZ, 1e-9), np.sin(np.arange(RATE_HZ))]).astype(np.float32), 80)
    assert features.max() - features.min() == pytest.approx(2.0)
