"""Trims the silence before the first sound: 80 ms for a preset voice, sometimes more for a cloned one.

Only samples are dropped; frames, codes and the codec's state stay as they are. AudioChunk.first_sample counts the
samples that were sent.
"""

from __future__ import annotations

import numpy as np

from oscine.config import TrimConfig
from oscine.levels import Pcm, first_audible

_EMPTY: Pcm = np.zeros(0, np.int16)


class SilenceTrimmer:
    """The beginning of one stream. `push` returns samples in order, less the silence before the onset."""

    def __init__(self, config: TrimConfig, sample_rate_hz: int, samples_per_frame: int, *, enabled: bool) -> None:
        self._threshold_dbfs = config.threshold_dbfs
        self._keep_samples = round(config.keep_ms / 1000 * sample_rate_hz)
        self._max_dropped = config.max_frames * samples_per_frame
        self._held = _EMPTY  # silence that may turn out to lie just before the onset
        self._active = enabled and self._max_dropped > 0
        self.dropped_samples = 0

    def push(self, pcm: Pcm) -> Pcm:
        if not self._active:
            return pcm
        held = np.concatenate((self._held, pcm))
        onset = first_audible(held, self._threshold_dbfs)
        silent = len(held) if onset is None else onset
        dropped = min(max(0, silent - self._keep_samples), self._max_dropped - self.dropped_samples)
        self._held = held[dropped:]
        self.dropped_samples += dropped
        return _EMPTY if onset is None and self.dropped_samples < self._max_dropped else self.finish()

    def finish(self) -> Pcm:
        """The samples held back. Everything after them passes through."""
        held, self._held, self._active = self._held, _EMPTY, False
        return held
