"""Speech that would never end: about one request in 300 says its text and then never draws the end-of-speech code.

Three signs, each enough: more frames than the text can need, room tone after the text, the same sounds over and over.
What was said until then is kept; the finish_reason is "runaway".

The frame budget binds only requests that do not set max_new_tokens themselves. The two detectors always look. None of
them fires on noise of constant loudness (random weights): room tone has to be far quieter than the speech before it.
A greedy stream that falls into an exact loop is endless by definition, and is ended.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from oscine.config import RunawayConfig
from oscine.types import FRAME_RATE_HZ

_FLOOR_DBFS = -80.0  # below this all silence is alike
_MIN_ROUNDS = 4  # of a repeated sequence
_LOOK_EVERY = 8  # frames


def frame_budget(config: RunawayConfig, text_ids: int) -> int:
    """The most frames that speech of so many text tokens may have."""
    return config.budget_frames + math.ceil(config.budget_frames_per_text_id * text_ids)


def frame_levels_dbfs(pcm: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """[n, samples] -> [n]: the loudness of each row."""
    samples = pcm.astype(np.float32)
    power = np.einsum("ij,ij->i", samples, samples) / max(1, pcm.shape[1])
    return np.maximum(_FLOOR_DBFS, 10 * np.log10(power + 1e-9) - 20 * math.log10(32768)).astype(np.float32)


class RoomTone:
    """Looks for a long, quiet, even end: every frame of the last seconds far below the speech that was heard."""

    def __init__(self, config: RunawayConfig) -> None:
        self._config = config
        self._needed_frames = math.ceil(config.room_tone_s * FRAME_RATE_HZ)
        self._speech_dbfs = _FLOOR_DBFS  # the loudest frame so far
        self._frames = 0
        self._low_dbfs, self._high_dbfs = math.inf, -math.inf

    def push(self, level_dbfs: float) -> bool:
        """True when this frame completes the room tone."""
        config = self._config
        self._speech_dbfs = max(self._speech_dbfs, level_dbfs)
        quiet = level_dbfs <= min(config.room_tone_dbfs, self._speech_dbfs - config.room_tone_drop_db)
        low, high = min(self._low_dbfs, level_dbfs), max(self._high_dbfs, level_dbfs)
        if not quiet or high - low > config.room_tone_spread_db:
            self._start_over()
            if not quiet:
                return False
            low = high = level_dbfs
        self._low_dbfs, self._high_dbfs = low, high
        self._frames += 1
        return self._frames >= self._needed_frames

    def _start_over(self) -> None:
        self._frames = 0
        self._low_dbfs, self._high_dbfs = math.inf, -math.inf


class Repetition:
    """Looks for a short sequence of code 0 that is said again and again, exactly. Looks up every few frames only."""

    def __init__(self, config: RunawayConfig) -> None:
        self._longest = config.repetition_period_frames
        self._needed_frames = math.ceil(config.repetition_s * FRAME_RATE_HZ)
        self._codes: list[int] = []

    def push(self, code: int) -> bool:
        """True when a repetition is complete, up to `_LOOK_EVERY` frames late."""
        codes = self._codes
        codes.append(code)
        if len(codes) % _LOOK_EVERY or len(codes) < self._needed_frames:
            return False
        del codes[: -max(self._needed_frames, _MIN_ROUNDS * self._longest)]
        return any(self._repeats(period) for period in range(1, self._longest + 1) if codes[-1 - period] == code)

    def _repeats(self, period: int) -> bool:
        frames = max(self._needed_frames, _MIN_ROUNDS * period)
        tail = self._codes[-frames:]
        return len(tail) == frames and tail[period:] == tail[:-period]


class RunawayDetector:
    """One stream's guard. `push` each frame; True means: end it here."""

    def __init__(self, config: RunawayConfig) -> None:
        self._enabled = config.enabled
        self._room_tone, self._repetition = RoomTone(config), Repetition(config)

    def push(self, code: int, level_dbfs: float, *, text_spoken: bool) -> bool:
        """`text_spoken`: the text has ended and there was a frame for each of its tokens. Before that a long quiet is
        a pause."""
        if not self._enabled:
            return False
        room_tone, repetition = self._room_tone.push(level_dbfs), self._repetition.push(code)
        return repetition or (room_tone and text_spoken)
