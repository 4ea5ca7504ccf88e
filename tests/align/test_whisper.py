"""A real Whisper model finds words where a synthesizer put them; docs/guides/timestamps.md has the figures."""

import numpy as np
import pytest

from oscine.align.aligner import Aligner
from oscine.align.timing import reference_recordings
from oscine.align.whisper import RATE_HZ
from oscine.align.words import TimedWord

pytestmark = pytest.mark.slow

RECORDINGS = reference_recordings()


def errors_s(words: list[TimedWord], starts_s: list[float]) -> np.ndarray:
    return np.abs([word.start_s - start_s for word, start_s in zip(words, starts_s, strict=True)])  # type: ignore[operator]


def test_words_start_where_the_synthesizer_says(whisper_tiny: Aligner) -> None:
    found = []
    for recording in RECORDINGS:
        words = whisper_tiny.align(recording.samples, RATE_HZ, recording.text, "english")
        found.append(errors_s(words, [start_s for start_s, _ in recording.times]))
    errors = np.concatenate(found)
    # Measured: 0.05 and 0.2.
    assert np.median(errors) < 0.1 and np.percentile(errors, 95) < 0.4


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


def test_it_transcribes(whisper_tiny: Aligner) -> None:
    text = whisper_tiny.transcribe(RECORDINGS[0].samples, RATE_HZ)
    assert text.lower().split()[:6] == RECORDINGS[0].text.lower().split()[:6]
