"""Runaway detection: about one request in 300 speaks its text and then never draws the end-of-speech code.

A stream ends with finish_reason "runaway" if it has more frames than its text can need (only where the request sets no
max_new_tokens), if room tone follows the text, if audible frames after the text hardly differ, or if the same codes
repeat. The audio so far is kept. Noise of constant loudness, as random weights make it, triggers no detector; a greedy
stream in an exact loop does.
"""

from __future__ import annotations

import math
from collections import deque

from oscine.audio.pcm import FLOOR_DBFS, FRAME_RATE_HZ, Codes
from oscine.config import RunawayConfig

_MIN_ROUNDS = 4  # of a repeated sequence
_CHECK_EVERY = 8  # frames


def frame_budget(config: RunawayConfig, text_ids: int) -> int:
    """Returns the maximum number of frames for a text of so many tokens."""
    return config.budget_frames + math.ceil(config.budget_frames_per_text_id * text_ids)


class RoomTone:
    """Detects a long, quiet and even ending: every frame of the last seconds lies far below the loudest one."""

    def __init__(self, config: RunawayConfig) -> None:
        self._config = config
        self._needed_frames = math.ceil(config.room_tone_s * FRAME_RATE_HZ)
        self._loudest_dbfs = FLOOR_DBFS
        self._frames = 0
        self._low_dbfs, self._high_dbfs = math.inf, -math.inf

    def is_audible(self, level_dbfs: float) -> bool:
        config = self._config
        return level_dbfs > min(config.room_tone_dbfs, self._loudest_dbfs - config.room_tone_drop_db)

    def push(self, level_dbfs: float) -> bool:
        """Returns True when this frame completes the room tone."""
        config = self._config
        self._loudest_dbfs = max(self._loudest_dbfs, level_dbfs)
        if self.is_audible(level_dbfs):
            self._frames, self._low_dbfs, self._high_dbfs = 0, math.inf, -math.inf
            return False
        low, high = min(self._low_dbfs, level_dbfs), max(self._high_dbfs, level_dbfs)
        if high - low > config.room_tone_spread_db:
            self._frames, low, high = 0, level_dbfs, level_dbfs
        self._low_dbfs, self._high_dbfs = low, high
        self._frames += 1
        return self._frames >= self._needed_frames


class Repetition:
    """Detects a short sequence of first codes that repeats exactly."""

    def __init__(self, config: RunawayConfig) -> None:
        self._max_period = config.repetition_period_frames
        self._needed_frames = math.ceil(config.repetition_s * FRAME_RATE_HZ)
        self._codes: list[int] = []

    def push(self, code: int) -> bool:
        """Returns True when a repetition is complete, up to `_CHECK_EVERY` frames late."""
        codes = self._codes
        codes.append(code)
        if len(codes) % _CHECK_EVERY or len(codes) < self._needed_frames:
            return False
        del codes[: -max(self._needed_frames, _MIN_ROUNDS * self._max_period)]
        return any(self._repeats(period) for period in range(1, self._max_period + 1) if codes[-1 - period] == code)

    def _repeats(self, period: int) -> bool:
        frames = max(self._needed_frames, _MIN_ROUNDS * period)
        tail = self._codes[-frames:]
        return len(tail) == frames and tail[period:] == tail[:-period]


class Monotony:
    """Detects audible frames that hardly differ, though they do not repeat exactly.

    Both their first codes and the frames as a whole must be few: a codec whose first code is a phone, as the demo
    voice's, has few first codes in "no, no, no, no", and a pause of another codec may repeat whole frames.
    """

    def __init__(self, config: RunawayConfig) -> None:
        self._max_codes, self._max_frames = config.monotony_codes, config.monotony_frames
        self._needed_frames = math.ceil(config.monotony_s * FRAME_RATE_HZ)
        self._codes: deque[int] = deque(maxlen=self._needed_frames)
        self._frames: deque[bytes] = deque(maxlen=self._needed_frames)

    def push(self, codes: Codes) -> bool:
        """Returns True if the last audible frames are monotonous."""
        self._codes.append(int(codes[0]))
        self._frames.append(codes.tobytes())
        return (
            len(self._codes) == self._needed_frames
            and len(set(self._codes)) <= self._max_codes
            and len(set(self._frames)) <= self._max_frames
        )


class RunawayDetector:
    def __init__(self, config: RunawayConfig) -> None:
        self._enabled = config.enabled
        self._room_tone, self._repetition = RoomTone(config), Repetition(config)
        self._monotony = Monotony(config)

    def push(self, codes: Codes, level_dbfs: float, *, text_spoken: bool) -> bool:
        """Returns True if the stream should end with this frame. `text_spoken`: the text has ended, and each of its
        tokens had a frame; before that, a long silence is a pause, and a held sound is a part of the text."""
        if not self._enabled:
            return False
        room_tone, repetition = self._room_tone.push(level_dbfs), self._repetition.push(int(codes[0]))
        monotony = self._room_tone.is_audible(level_dbfs) and self._monotony.push(codes)
        return repetition or ((room_tone or monotony) and text_spoken)
