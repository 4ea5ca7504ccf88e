"""A real Whisper model finds words where a synthesizer put them; docs/guides/timestamps.md has the figures."""

import importlib.util

import numpy as np
import pytest

from oscine.align.aligner import Aligner
from oscine.align.timing import reference_recordings
from oscine.align.whisper import HOP, RATE_HZ, log_mel
from oscine.align.word_split import TimedWord
from tests.align.whisper_packages import whisper_packages

RECORDINGS = reference_recordings()


def errors_s(words: list[TimedWord], starts_s: list[float]) -> np.ndarray:
    return np.abs([word.start_s - start_s for word, start_s in zip(words, starts_s, strict=True)])  # type: ignore[operator]


@pytest.mark.slow
def test_words_start_where_the_synthesizer_says(whisper_tiny: Aligner) -> None:
    found = []
    for recording in RECORDINGS:
        words = whisper_tiny.align(recording.samples, RATE_HZ, recording.text, "english")
        found.append(errors_s(words, [start_s for start_s, _ in recording.times]))
    errors = np.concatenate(found)
    # Measured: 0.05 and 0.2.
    assert np.median(errors) < 0.1 and np.percentile(errors, 95) < 0.4


@pytest.mark.slow
def test_audio_that_is_longer_than_whispers_window_is_aligned_in_pieces(whisper_tiny: Aligner) -> None:
    several = RECORDINGS * 3
    samples = np.concatenate([recording.samples for recording in several])
    assert len(samples) > 60 * RATE_HZ
    words = whisper_tiny.align(samples, RATE_HZ, " ".join(recording.text for recording in several))
    offsets = np.cumsum([0, *(len(recording.samples) for recording in several[:-1])]) / RATE_HZ
    starts_s = [
        offset_s + start_s
        for recording, offset_s in zip(several, offsets, strict=True)
        for start_s, _ in recording.times
    ]
    errors = errors_s(words, starts_s)
    assert np.median(errors) < 0.1 and np.percentile(errors, 95) < 0.4


@pytest.mark.slow
def test_it_transcribes(whisper_tiny: Aligner) -> None:
    text = whisper_tiny.transcribe(RECORDINGS[0].samples, RATE_HZ)
    assert text.lower().split()[:6] == RECORDINGS[0].text.lower().split()[:6]


# --- the log-mel spectrogram ---


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
