"""Reference clips: what is wrong with them is found, and what is not wrong is not reported."""

import numpy as np
import pytest

from oscine.audio.checks import examine, trim_at_pause, warnings
from oscine.audio.clips import Clip, resample
from oscine.audio.pcm import Samples
from tests.speech_like import RATE_HZ, silence, speech_like

GOOD = speech_like()  # 24 syllables
WORDS = "ba " * 24


def changed(samples: Samples, rate_hz: int = RATE_HZ) -> Clip:
    return Clip(samples.astype(np.float32), rate_hz)


def noise(level: float, samples: int = len(GOOD.samples)) -> Samples:
    return (level * np.random.default_rng(1).standard_normal(samples)).astype(np.float32)


def test_a_good_clip_has_no_warnings() -> None:
    assert warnings(examine(GOOD), WORDS) == warnings(examine(GOOD), None) == ()


@pytest.mark.parametrize("gain", [0.01, 0.1, 1.0])
def test_a_report_does_not_depend_on_the_level(gain: float) -> None:
    report, loud = examine(changed(gain * GOOD.samples)), examine(GOOD)
    assert (report.speech_s, report.voiced_s) == pytest.approx((loud.speech_s, loud.voiced_s), abs=0.05)
    assert warnings(report, WORDS) == ()


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 44_100, 48_000])
def test_a_report_does_not_depend_on_the_rate(rate_hz: int) -> None:
    report = examine(resample(GOOD, rate_hz))
    assert report.speech_s == pytest.approx(examine(GOOD).speech_s, abs=0.1) and warnings(report, WORDS) == ()


@pytest.mark.parametrize(
    ("clip", "transcript", "message"),
    [
        (changed(noise(0.1)), None, "no speech"),
        (changed(0.3 * np.sin(np.arange(5 * RATE_HZ) / 20)), None, "no speech"),  # a hum
        (changed(np.concatenate([noise(0.1, RATE_HZ), silence(1), noise(0.1, RATE_HZ)])), None, "no speech"),
        (changed(GOOD.samples + noise(0.06)), None, "noisy"),
        (changed(np.clip(4 * GOOD.samples, -0.9, 0.9)), None, "clipped"),
        (speech_like(1), None, "only 1.6 s of speech"),
        (speech_like(12), 4 * WORDS, "which every request pays for"),
        (speech_like(end_s=0.0), WORDS, "ends within speech"),
        (GOOD, "ba", "does not seem to fit"),
        (GOOD, 12 * WORDS, "does not seem to fit"),
        (GOOD, "八" * 200, "does not seem to fit"),
    ],
)
def test_what_clones_badly_is_named(clip: Clip, transcript: str | None, message: str) -> None:
    found = warnings(examine(clip), transcript)
    assert len(found) == 1 and message in found[0], (found, examine(clip))


def test_a_transcript_in_ideographs_fits() -> None:
    assert warnings(examine(GOOD), "八" * 24) == ()


def test_a_clip_for_its_timbre_alone_may_be_long_and_end_anywhere() -> None:
    assert warnings(examine(speech_like(12, end_s=0.0)), None) == ()


@pytest.mark.parametrize("samples", [1, 100, 320, 321, 640, 5000])
def test_the_shortest_clips_are_examined(samples: int) -> None:
    clip = changed(GOOD.samples[5000 : 5000 + samples], 16_000)
    examine(clip)
    assert 0 < len(trim_at_pause(clip).samples) <= samples


def test_a_silent_clip_is_examined() -> None:
    assert "no speech" in warnings(examine(changed(silence(3))), None)[0]
    assert len(trim_at_pause(changed(silence(3))).samples) == 3 * RATE_HZ


# Trimming


def test_a_long_clip_is_cut_at_its_last_pause_in_time() -> None:
    """Groups take 1.6 s and pauses 0.4 s: from 0.1 s on, a pause begins every 2 s, at 1.7, 3.7, 5.7, ..."""
    clip = speech_like(12)
    for max_s, end_s in ((20.0, 20.0), (10.0, 10.0), (9.0, 8.0), (5.0, 4.0)):
        cut = trim_at_pause(clip, max_s)
        assert cut.duration_s == pytest.approx(end_s, abs=0.05)
        assert not examine(cut).ends_in_speech
        assert (cut.samples == clip.samples[: len(cut.samples)]).all()


def test_silence_around_the_speech_is_trimmed() -> None:
    padded = np.concatenate([silence(2), GOOD.samples, silence(3)])
    cut = trim_at_pause(changed(padded + noise(1e-4, len(padded))))
    assert cut.duration_s == pytest.approx(0.3 + 5.6 + 0.3, abs=0.1)


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    cut = trim_at_pause(speech_like(6, pause_s=0.0), 4.0)
    assert 2.0 <= cut.duration_s <= 4.0
