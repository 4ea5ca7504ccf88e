from __future__ import annotations

import random

import numpy as np
import pytest

from oscine.audio.pcm import rms_dbfs
from oscine.config import RunawayConfig
from oscine.engine.runaway import RunawayDetector, frame_budget

CONFIG = RunawayConfig()
FRAME = 1920


def level_of(pcm: np.ndarray) -> float:
    return float(rms_dbfs(pcm[None])[0])


def ended_at(frames: list[tuple[int, float]], text_spoken_at: int = 0, config: RunawayConfig = CONFIG) -> int | None:
    """The frame at which the detector ends a stream of (first code, level) frames. Their other codes differ."""
    rest = np.random.default_rng(0).integers(2048, size=(len(frames), 15))
    codes = [np.array([code, *others]) for (code, _), others in zip(frames, rest, strict=True)]
    return ended(codes, [level for _, level in frames], text_spoken_at, config)


def ended(
    codes: list[np.ndarray], levels: list[float], text_spoken_at: int = 0, config: RunawayConfig = CONFIG
) -> int | None:
    detector = RunawayDetector(config)
    for at, (frame, level_dbfs) in enumerate(zip(codes, levels, strict=True)):
        if detector.push(frame, level_dbfs, text_spoken=at >= text_spoken_at):
            return at
    return None


def varied_codes(count: int, seed: int) -> list[int]:
    """Returns codes like those of speech: rarely the same code twice in a row, some frequent codes, held for a few
    frames in pauses."""
    rng = random.Random(seed)
    codes: list[int] = []
    while len(codes) < count:
        code = rng.choice([rng.randrange(2000), rng.randrange(20)])
        codes += [code] * (rng.randint(1, 12) if rng.random() < 0.05 else 1)
    return codes[:count]


def speech_levels(count: int, seed: int) -> list[float]:
    """Syllables around -20 dBFS, pauses around -60 of up to two seconds."""
    rng = random.Random(seed)
    levels: list[float] = []
    while len(levels) < count:
        levels += [rng.uniform(-32, -14) for _ in range(rng.randint(3, 30))]
        levels += [rng.uniform(-66, -54) for _ in range(rng.randint(0, 25))]
    return levels[:count]


@pytest.mark.parametrize("seed", range(20))
def test_speech_is_never_ended(seed: int) -> None:
    frames = list(zip(varied_codes(3000, seed), speech_levels(3000, seed), strict=True))
    assert ended_at(frames) is None


@pytest.mark.parametrize("level_dbfs", [-80.0, -60.0, -45.0, -20.0])
def test_noise_of_constant_loudness_is_never_ended(level_dbfs: float) -> None:
    rng = np.random.default_rng(0)
    scale = 32768 * 10 ** (level_dbfs / 20)
    levels = [level_of((rng.standard_normal(FRAME) * scale).astype(np.int16)) for _ in range(400)]
    assert ended_at(list(zip(varied_codes(400, 1), levels, strict=True))) is None


def test_a_long_steady_tone_is_not_room_tone() -> None:
    tone = (8000 * np.sin(np.arange(FRAME) * 0.05)).astype(np.int16)
    assert ended_at([(code, level_of(tone)) for code in varied_codes(400, 2)]) is None


def test_room_tone_after_the_text_is_ended_in_seconds() -> None:
    levels = speech_levels(100, 3) + [-58.0, -56.0, -57.0] * 100
    at = ended_at(list(zip(varied_codes(400, 3), levels, strict=True)))
    assert at is not None and 150 <= at <= 200


def test_digital_silence_counts_as_room_tone() -> None:
    silent = level_of(np.zeros(FRAME, np.int16))
    levels = [-20.0] * 30 + [silent] * 100
    assert ended_at(list(zip(varied_codes(130, 4), levels, strict=True))) == 30 + 63 - 1


def test_quiet_before_the_text_is_spoken_is_a_pause() -> None:
    levels = [-20.0] * 30 + [-60.0] * 100 + speech_levels(100, 5)
    assert ended_at(list(zip(varied_codes(230, 5), levels, strict=True)), text_spoken_at=140) is None


@pytest.mark.parametrize("period", [1, 2, 7, 25])
def test_repeating_codes_are_ended(period: int) -> None:
    loop = varied_codes(1000, 6)[:period] if period > 1 else [5]
    codes = varied_codes(100, 7) + loop * 300
    at = ended_at([(code, -20.0) for code in codes[:500]], text_spoken_at=10_000)
    assert at is not None and 100 + 75 - period <= at <= 100 + 110 + period


def test_a_few_repetitions_are_speech() -> None:
    codes = varied_codes(100, 8) + [1, 2, 3, 4, 5, 6] * 10 + varied_codes(100, 9)
    assert ended_at([(code, -20.0) for code in codes]) is None


def test_a_disabled_detector_ends_nothing() -> None:
    assert ended_at([(1, -80.0)] * 1000, config=RunawayConfig(enabled=False)) is None


def test_the_frame_budget_grows_with_the_text() -> None:
    assert frame_budget(CONFIG, 2) / 12.5 < 6
    assert frame_budget(CONFIG, 100) / 12.5 > 60
    assert frame_budget(RunawayConfig(budget_frames=12, budget_frames_per_text_id=8.0), 5) == 52


def sounds(firsts: list[int], others: int, seed: int) -> list[np.ndarray]:
    """Frames with these first codes; the rest of a frame is one of so many."""
    rng = random.Random(seed)
    return [np.array([first, *[rng.randrange(others)] * 15]) for first in firsts]


# What the published weights did in three real runaways: a few frames, in no exact order, with short interruptions.
LOOP = random.Random(1).choices([617, 617, 617, 706, 706, 881], k=400)


def test_a_few_audible_frames_over_and_over_are_ended_after_two_seconds() -> None:
    codes = [*sounds(varied_codes(40, 1), 2048, 1), *sounds(LOOP, 3, 2)]
    at = ended(codes, [-20.0] * len(codes))
    assert at is not None and 50 <= at <= 64


@pytest.mark.parametrize(
    ("others", "level_dbfs", "text_spoken_at"),
    [
        (2048, -20.0, 0),  # the demo voice's "no, no, no, no": few phones, no frame twice
        (3, -60.0, 400),  # a pause before the text is spoken
        (3, -20.0, 200),  # a held sound before the text is spoken
    ],
)
def test_few_first_codes_alone_are_no_runaway(others: int, level_dbfs: float, text_spoken_at: int) -> None:
    codes = [
        *sounds(varied_codes(40, 1), 2048, 1),
        *sounds(LOOP[:100], others, 2),
        *sounds(varied_codes(60, 3), 2048, 3),
    ]
    levels = [-20.0] * 40 + [level_dbfs] * 100 + [-20.0] * 60
    assert ended(codes, levels, text_spoken_at) is None


def test_quiet_frames_are_no_monotony() -> None:
    codes = [*sounds(varied_codes(40, 1), 2048, 1), *sounds(LOOP[:50], 3, 2)]
    assert ended(codes, [-20.0] * 40 + [-60.0, -50.0] * 25) is None
