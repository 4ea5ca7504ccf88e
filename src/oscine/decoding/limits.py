"""Limits on audio files. They apply while a file is decoded: a few kilobytes can hold hours of audio."""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_FILE_BYTES = 256 * 2**20
MAX_CHANNELS = 7  # libav frames have eight pointers to planes, and PyAV reads one beyond the last plane


@dataclass(frozen=True, slots=True)
class ClipLimits:
    max_s: float = math.inf
    max_samples: int = 2**26  # per channel; 20 minutes at 48 kHz are 58 million


ANY_CLIP = ClipLimits()
# A voice needs 3 to 20 s, and each second adds 12.5 prompt rows to every request with this voice.
REFERENCE_CLIP = ClipLimits(max_s=60.0, max_samples=60 * 192_000)
