"""Encoder stages for files that are sent when they are complete. Their headers state the true length."""

from __future__ import annotations

import io
import struct

from oscine.audio.clips import wav_header
from oscine.audio.libav_encoders import FLAC, MP3, CompressStage


class WavFileStage:
    def __init__(self, rate_hz: int) -> None:
        self._rate_hz, self._pcm = rate_hz, bytearray()

    def push(self, pcm: bytes) -> bytes:
        self._pcm += pcm
        return b""

    def finish(self) -> bytes:
        return wav_header(self._rate_hz, len(self._pcm) // 2) + self._pcm

    def close(self) -> None:
        pass


class FlacFileStage:
    def __init__(self, rate_hz: int) -> None:
        self._file = io.BytesIO()
        self._stage = CompressStage(FLAC, rate_hz, self._file)

    def push(self, pcm: bytes) -> bytes:
        return self._stage.push(pcm)

    def finish(self) -> bytes:
        self._stage.finish()
        return self._file.getvalue()

    def close(self) -> None:
        self._stage.close()


class Mp3FileStage:
    """The frames of a stream, behind a frame that decodes to silence and tells players what to skip."""

    def __init__(self, rate_hz: int) -> None:
        self._stage = CompressStage(MP3, rate_hz)
        self._frames = bytearray()
        self._samples = 0

    def push(self, pcm: bytes) -> bytes:
        self._samples += len(pcm) // 2
        self._frames += self._stage.push(pcm)
        return b""

    def finish(self) -> bytes:
        self._frames += self._stage.finish()
        if not self._frames:
            return b""
        header = _info_frame(bytes(self._frames[:4]), self._stage.packets, len(self._frames), self._samples)
        return header + self._frames

    def close(self) -> None:
        self._stage.close()


_ENCODER_DELAY = 576  # samples; decoders add 529 of their own
_MPEG1_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG2_KBPS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}


def _info_frame(frame_header: bytes, frames: int, frames_bytes: int, samples: int) -> bytes:
    """An empty frame with Xing's tag, as LAME extends it: the number of frames, and the padding around the audio. The
    stream is mono with a constant bit rate; `frame_header` is that of its first frame."""
    version = frame_header[1] >> 3 & 3  # 3: MPEG-1, 2: MPEG-2, 0: MPEG-2.5
    kbps = (_MPEG1_KBPS if version == 3 else _MPEG2_KBPS)[frame_header[2] >> 4]
    rate_hz = _RATES_HZ[version][frame_header[2] >> 2 & 3]
    frame_samples = 1152 if version == 3 else 576
    frame_bytes = frame_samples // 8 * 1000 * kbps // rate_hz
    tag_begin = 4 + (17 if version == 3 else 9)  # after the side information of a mono frame
    padding = frames * frame_samples - _ENCODER_DELAY - samples
    file_bytes = frame_bytes + frames_bytes
    tag = struct.pack(
        ">4sIII100sI9sBBIHHBB3sBBHIH",
        *(b"Info", 0xF, frames, file_bytes),  # 0xF: frames, bytes, seek table and quality are there
        bytes(percent * 256 // 100 for percent in range(100)),  # the bit rate is constant, so the seek table is linear
        *(0, b"LAME", 1, 0),  # quality, encoder, method (constant bit rate), low-pass filter
        *(0, 0, 0, 0, kbps),  # gains, flags, bit rate
        (_ENCODER_DELAY << 12 | padding).to_bytes(3, "big"),
        *(0, 0, 0, file_bytes, 0),  # noise shaping, gain, preset, length, checksum of the audio (not computed)
    )
    begun = bytes([*frame_header[:2], frame_header[2] & ~2, frame_header[3]]).ljust(tag_begin, b"\0") + tag  # unpadded
    return (begun + struct.pack(">H", _crc16(begun))).ljust(frame_bytes, b"\0")


def _crc16(data: bytes) -> int:
    """CRC-16/ARC, as the tag ends with it."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
