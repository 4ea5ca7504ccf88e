"""A signal with the properties of speech that levels and periodicity see: voiced syllables in groups, with pauses."""

import numpy as np

from oscine.audio.clips import Clip
from oscine.audio.pcm import Samples

RATE_HZ = 24_000


def speech_like(groups: int = 3, pause_s: float = 0.4, *, end_s: float = 0.4, seed: int = 0) -> Clip:
    """Groups of eight syllables of 0.2 s; `end_s` of silence after the last one."""
    parts: list[Samples] = [silence(0.1)]
    for number in range(groups):
        parts += [syllable(seed + 8 * number + index) for index in range(8)]
        parts.append(silence(end_s if number == groups - 1 else pause_s))
    noise = np.random.default_rng(seed).standard_normal(sum(map(len, parts)))
    return Clip((np.concatenate(parts) + 1e-4 * noise).astype(np.float32), RATE_HZ)


def syllable(number: int) -> Samples:
    n = np.arange(round(0.2 * RATE_HZ))
    pitch_hz = 110 + 7 * (number * 5 % 9)
    harmonics = sum(np.sin(2 * np.pi * k * pitch_hz * n / RATE_HZ + k) / k for k in range(1, 12))
    swell = np.sin(np.pi * (n + 1) / (len(n) + 1)) ** 0.7
    return (0.2 * harmonics * swell).astype(np.float32)


def silence(duration_s: float) -> Samples:
    return np.zeros(round(duration_s * RATE_HZ), np.float32)
