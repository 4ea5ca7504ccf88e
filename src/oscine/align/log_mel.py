"""Whisper's input: the log-mel spectrogram of 16 kHz audio, a frame every 10 ms."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from oscine.frames import Samples

Array = npt.NDArray[np.float32]

RATE_HZ = 16_000
HOP = 160  # samples
_FFT = 400
_HZ_PER_MEL = 200 / 3  # below 1 kHz; above, 27 mels are a factor of 6.4 (Slaney's scale)
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


def log_mel(samples: Samples, mels: int) -> Array:
    """[mels, len(samples) // HOP]."""
    padded = np.pad(samples, _FFT // 2, mode="reflect" if len(samples) > _FFT // 2 else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, _FFT)[:-1:HOP]
    hann = np.hanning(_FFT + 1)[:-1].astype(np.float32)
    power = np.abs(np.fft.rfft(windows * hann)).astype(np.float32) ** 2
    decades = np.log10(np.maximum(_mel_filters(mels) @ power[: len(samples) // HOP].T, 1e-10))
    limited = np.maximum(decades, decades.max(initial=-10.0) - 8)
    return np.ascontiguousarray((limited + 4) / 4, dtype=np.float32)


@functools.cache
def _mel_filters(mels: int) -> Array:
    """[mels, bins]: triangles of equal area."""
    bins_hz = np.fft.rfftfreq(_FFT, 1 / RATE_HZ)
    edges = np.linspace(0, _KNEE_MEL + np.log(RATE_HZ / 2 / _KNEE_HZ) / _LOG_STEP, mels + 2)
    edges_hz = np.where(edges < _KNEE_MEL, edges * _HZ_PER_MEL, _KNEE_HZ * np.exp(_LOG_STEP * (edges - _KNEE_MEL)))
    widths = np.diff(edges_hz)[:, None]
    rising = (bins_hz - edges_hz[:-2, None]) / widths[:-1]
    falling = (edges_hz[2:, None] - bins_hz) / widths[1:]
    area = 2 / (edges_hz[2:] - edges_hz[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)
