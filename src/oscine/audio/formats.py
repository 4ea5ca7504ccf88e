"""Names and numbers of the audio that a client may ask for. No numpy: the command line starts without it."""

from __future__ import annotations

from typing import Literal, get_args

FormatName = Literal[
    "mp3", "wav", "pcm", "opus", "aac", "flac", "mulaw", "alaw", "g722", "wav_mulaw", "wav_alaw", "wav_g722"
]
SampleRate = Literal[8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000]  # all that an MP3 can have
RATES_HZ: tuple[int, ...] = get_args(SampleRate)
MIN_SPEED, MAX_SPEED = 0.25, 4.0
MAX_VOLUME = 4.0  # 12 dB
MIN_PACKET_MS, MAX_PACKET_MS = 5, 1000
