"""Silence before the first sound is not sent: frame 0 of a preset voice is 80 ms of it, a cloned voice may wait longer.

Only samples are dropped; the codec's state, frames and codes go on as they are. Positions on the wire
(AudioChunk.first_sample) count the samples that were sent, so the first one sent is sample 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from oscine.config import TrimConfig

Pcm = npt.NDArray[np.int16]
_NOTHING: Pcm = np.zeros(0, np.int16)


class SilenceTrimmer:
    """One stream's beginning. What goes in comes out, in order, less the silence in front of the onset."""

    def __init__(self, config: TrimConfig, sample_rate_hz: int, samples_per_frame: int) -> None:
        self._threshold = 32768 * 10 ** (config.threshold_dbfs / 20)
        self._keep = round(config.keep_ms / 1000 * sample_rate_hz)
        self._droppable = config.max_frames * samples_per_frame
        self._held = _NOTHING  # the last silence, which may turn out to lie just before the onset
        self._open = config.enabled and self._droppable > 0
        self.dropped_samples = 0

    def push(self, pcm: Pcm) -> Pcm:
        if not self._open:
            return pcm
        self._held = np.concatenate((self._held, pcm))
        # In int32: the absolute value of -32768 is no int16.
        loud = np.abs(self._held.astype(np.int32)) > self._threshold
        heard = bool(loud.any())
        quiet = int(loud.argmax()) if heard else len(loud)
        self._drop(max(0, quiet - self._keep))
        return self.finish() if heard or self.dropped_samples >= self._droppable else _NOTHING

    def finish(self) -> Pcm:
        """The stream has ended, or silence is over: what was held leaves, and everything after it."""
        held, self._held, self._open = self._held, _NOTHING, False
        return held

    def _drop(self, samples: int) -> None:
        samples = min(samples, self._droppable - self.dropped_samples)
        self._held = self._held[samples:]
        self.dropped_samples += samples
