"""Encodes the engine's PCM as an audio file, piece by piece: change speed and volume, resample, encode.

Each stage has a `push` per piece and one `finish`; an `Encoder` is a chain of stages. No stage waits for more audio
than its codec's frame and look-ahead, and the joined bytes do not depend on how the audio was split.
"""

from __future__ import annotations

import asyncio
import io
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol, cast

import numpy as np
import soxr

from oscine.audio.clips import wav_header
from oscine.audio.formats import MAX_SPEED, MIN_SPEED, RATES_HZ
from oscine.audio.libav_encoders import (
    AAC,
    ALAW,
    FLAC,
    G722,
    MP3,
    MULAW,
    OPUS,
    WAV_ALAW,
    WAV_G722,
    WAV_MULAW,
    CodecSettings,
    CompressStage,
    TempoStage,
)
from oscine.errors import RequestError, unknown_choice

_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
_G711_RATES_HZ = (8_000, 16_000)


@dataclass(frozen=True, slots=True)
class Format:
    """A `response_format` of the API. Lossy codecs add a little silence:

    | | samples before the audio | samples after it |
    |---|---|---|
    | mp3, streamed | 1105 | less than two frames of 576 (1152 from 32 kHz on) |
    | mp3, whole | none: the file tells players what to skip | none, likewise |
    | aac | 1024 | less than one frame of 1024 |
    | opus | none: the file tells players what to skip | none, likewise |
    """

    name: str
    media_type: str
    codec: CodecSettings | None = None  # None: uncompressed
    rates_hz: tuple[int, ...] = RATES_HZ
    # The header states the length of the audio. Many readers refuse or misread the placeholder of a stream.
    needs_length: bool = False
    default_rate_hz: int | None = None  # for audio whose rate it does not have; None: such audio is refused
    sample_bits: int | None = None  # of a stream without a header, whose samples all have the same number


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "mp3": Format("mp3", "audio/mpeg", MP3),
        "wav": Format("wav", "audio/wav", needs_length=True),
        "pcm": Format("pcm", "audio/pcm", sample_bits=16),
        "opus": Format("opus", "audio/ogg", OPUS, _OPUS_RATES_HZ),
        "aac": Format("aac", "audio/aac", AAC),
        "flac": Format("flac", "audio/flac", FLAC, needs_length=True),
        # Telephones.
        "mulaw": Format("mulaw", "audio/PCMU", MULAW, _G711_RATES_HZ, default_rate_hz=8_000, sample_bits=8),
        "alaw": Format("alaw", "audio/PCMA", ALAW, _G711_RATES_HZ, default_rate_hz=8_000, sample_bits=8),
        "g722": Format("g722", "audio/G722", G722, (16_000,), default_rate_hz=16_000, sample_bits=4),
        "wav_mulaw": Format("wav_mulaw", "audio/wav", WAV_MULAW, _G711_RATES_HZ, True, default_rate_hz=8_000),
        "wav_alaw": Format("wav_alaw", "audio/wav", WAV_ALAW, _G711_RATES_HZ, True, default_rate_hz=8_000),
        "wav_g722": Format("wav_g722", "audio/wav", WAV_G722, (16_000,), True, default_rate_hz=16_000),
    }
)


class Encoder(Protocol):
    """One stream's encoder; not safe for two threads at once."""

    def push(self, pcm: bytes) -> bytes:
        """Takes PCM16 mono of any length and returns the bytes that are ready, if any."""

    def finish(self) -> bytes:
        """Returns the rest of the file. No `push` may follow."""

    def close(self) -> None:
        """Frees the codec; may be called at any time and more than once."""


def open_encoder(
    format_name: str, *, rate_hz: int, out_rate_hz: int | None = None, speed: float = 1.0, volume: float = 1.0
) -> Encoder:
    """Opens an encoder for a stream. Only the arguments are checked now: codecs open with the first `push`, on its
    thread. `push(b"")` opens them early."""
    form, out_rate_hz = checked_format(format_name, rate_hz, out_rate_hz, speed)
    header = wav_header(out_rate_hz) if format_name == "wav" else b""
    if not form.codec and out_rate_hz == rate_hz and speed == volume == 1.0:
        return _UncompressedStage(header)

    def stages() -> list[Encoder]:
        last = CompressStage(form.codec, out_rate_hz) if form.codec else _UncompressedStage(header)
        return [*_conversions(rate_hz, out_rate_hz, speed, volume), last]

    return _Chain(stages)


def open_file_encoder(
    format_name: str, *, rate_hz: int, out_rate_hz: int | None = None, speed: float = 1.0, volume: float = 1.0
) -> Encoder:
    """Opens an encoder for a file that is sent when it is complete: its header states the true length, and what players
    skip."""
    if format_name not in _FILE_STAGES:
        return open_encoder(format_name, rate_hz=rate_hz, out_rate_hz=out_rate_hz, speed=speed, volume=volume)
    _, file_rate_hz = checked_format(format_name, rate_hz, out_rate_hz, speed)
    open_last = _FILE_STAGES[format_name]
    return _Chain(lambda: [*_conversions(rate_hz, file_rate_hz, speed, volume), open_last(file_rate_hz)])


def encode_whole(
    format_name: str, pcm: bytes, *, rate_hz: int, out_rate_hz: int | None = None, speed: float = 1.0
) -> bytes:
    """Encodes complete audio as a file."""
    encoder = open_file_encoder(format_name, rate_hz=rate_hz, out_rate_hz=out_rate_hz, speed=speed)
    return encoder.push(pcm) + encoder.finish()


class ThreadPool(Protocol):
    def submit(self, call: Callable[[], bytes], /) -> Future[bytes]: ...


class AsyncEncoder:
    """Runs an encoder on a thread pool. `close` waits for a running call without blocking."""

    def __init__(self, encoder: Encoder, pool: ThreadPool | None) -> None:
        """Calls run on the event loop if `pool` is None, which suits uncompressed audio: it costs microseconds."""
        self._encoder, self._pool = encoder, pool
        self._running: asyncio.Future[bytes] | None = None

    async def push(self, pcm: bytes) -> bytes:
        return await self._run(lambda: self._encoder.push(pcm))

    async def finish(self) -> bytes:
        return await self._run(self._encoder.finish)

    async def _run(self, call: Callable[[], bytes]) -> bytes:
        if self._pool is None:
            return call()
        self._running = asyncio.wrap_future(self._pool.submit(call))
        return await asyncio.shield(self._running)

    def close(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.add_done_callback(lambda _: self._encoder.close())
        else:
            self._encoder.close()


def checked_format(format_name: str, rate_hz: int, out_rate_hz: int | None, speed: float) -> tuple[Format, int]:
    """Returns the format and the rate of the file, for audio of `rate_hz`."""
    if format_name not in FORMATS:
        raise RequestError(unknown_choice("response_format", format_name, FORMATS), "response_format")
    form = FORMATS[format_name]
    out_rate_hz = out_rate_hz or (rate_hz if rate_hz in form.rates_hz else form.default_rate_hz or rate_hz)
    if out_rate_hz not in form.rates_hz:
        possible = ", ".join(map(str, form.rates_hz))
        others = [name for name, other in FORMATS.items() if out_rate_hz in other.rates_hz]
        hint = f"; supported by {', '.join(others)}" if others else ""
        message = f"{format_name} does not support {out_rate_hz} Hz (possible: {possible}){hint}"
        raise RequestError(message, "sample_rate")
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise RequestError(f"speed must be between {MIN_SPEED:g} and {MAX_SPEED:g}, got {speed:g}", "speed")
    return form, out_rate_hz


def packet_bytes(form: Format, rate_hz: int, packet_ms: int) -> int:
    """The size of a packet of this length. Raises RequestError for formats and lengths that have none."""
    if form.sample_bits is None:
        possible = ", ".join(name for name, other in FORMATS.items() if other.sample_bits)
        message = f"{form.name} has no packets of a fixed length (possible: {possible}); leave out packet_ms"
        raise RequestError(message, "packet_ms")
    size, odd = divmod(rate_hz * packet_ms * form.sample_bits, 8000)
    if odd or size * 8 % form.sample_bits:
        message = f"{packet_ms} ms at {rate_hz} Hz are not a whole number of samples; 20 ms are at 8000 or 16000 Hz"
        raise RequestError(message, "packet_ms")
    return size


def _conversions(rate_hz: int, out_rate_hz: int, speed: float, volume: float) -> list[Encoder]:
    stages: list[Encoder] = [_VolumeStage(volume)] if volume != 1.0 else []
    stages += [TempoStage(rate_hz, speed)] if speed != 1.0 else []
    return [*stages, _ResampleStage(rate_hz, out_rate_hz)] if out_rate_hz != rate_hz else stages


class _Chain:
    """Stages in a row, created on first use."""

    def __init__(self, make_stages: Callable[[], list[Encoder]]) -> None:
        self._make_stages = make_stages
        self._stages: list[Encoder] | None = None
        self._closed = False

    def push(self, pcm: bytes) -> bytes:
        for stage in self._open():
            pcm = stage.push(pcm)
        return pcm

    def finish(self) -> bytes:
        rest = b""
        for stage in self._open():
            rest = stage.push(rest) + stage.finish()
        self.close()
        return rest

    def close(self) -> None:
        self._closed = True
        for stage in self._stages or []:
            stage.close()
        self._stages = None

    def _open(self) -> list[Encoder]:
        assert not self._closed, "this encoder is finished or closed"
        if self._stages is None:
            self._stages = self._make_stages()
        return self._stages


class _UncompressedStage:
    def __init__(self, header: bytes) -> None:
        self._header = header

    def push(self, pcm: bytes) -> bytes:
        if not self._header:
            return pcm
        header, self._header = self._header, b""
        return header + pcm

    def finish(self) -> bytes:
        return self.push(b"")

    def close(self) -> None:
        pass


class _VolumeStage:
    def __init__(self, volume: float) -> None:
        self._volume = volume

    def push(self, pcm: bytes) -> bytes:
        samples = np.frombuffer(pcm, "<i2") * np.float32(self._volume)
        return np.rint(samples).clip(-32768, 32767).astype("<i2").tobytes()

    def finish(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class _ResampleStage:
    """Resamples with soxr, which holds back 35 to 80 ms: its best filters are long and work in blocks."""

    def __init__(self, rate_hz: int, out_rate_hz: int) -> None:
        self._resampler = soxr.ResampleStream(rate_hz, out_rate_hz, 1, dtype="float32", quality="HQ")

    def push(self, pcm: bytes) -> bytes:
        return self._resampled(pcm, last=False) if pcm else b""

    def finish(self) -> bytes:
        return self._resampled(b"", last=True)

    def close(self) -> None:
        pass

    def _resampled(self, pcm: bytes, *, last: bool) -> bytes:
        # In floats, because soxr dithers 16-bit output and silence would not stay silent.
        floats = self._resampler.resample_chunk(np.frombuffer(pcm, "<i2").astype(np.float32), last=last)
        return cast(bytes, np.rint(floats).clip(-32768, 32767).astype("<i2").tobytes())


# --- Files that are sent when they are complete: their headers state the true length.


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


class CompressedFileStage:
    """A file whose header libav completes at the end."""

    def __init__(self, settings: CodecSettings, rate_hz: int) -> None:
        self._file = io.BytesIO()
        self._stage = CompressStage(settings, rate_hz, self._file)

    def push(self, pcm: bytes) -> bytes:
        return self._stage.push(pcm)

    def finish(self) -> bytes:
        self._stage.finish()
        return self._file.getvalue()

    def close(self) -> None:
        self._stage.close()


class Mp3FileStage:
    """Writes the frames of a stream after a silent frame that tells players what to skip."""

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


# The others have no header that states a length.
_FILE_STAGES: Mapping[str, Callable[[int], Encoder]] = MappingProxyType(
    {
        "wav": WavFileStage,
        "mp3": Mp3FileStage,
        **{
            name: partial(CompressedFileStage, form.codec)
            for name, form in FORMATS.items()
            if form.codec and form.needs_length
        },
    }
)


# --- The silent first frame of an MP3 file.

_ENCODER_DELAY = 576  # samples; decoders add 529 of their own
_MPEG1_KBPS = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MPEG2_KBPS = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}


def _info_frame(frame_header: bytes, frames: int, frames_bytes: int, samples: int) -> bytes:
    """Makes an empty frame with Xing's tag, as LAME extends it: the number of frames, and the padding around the audio.
    The stream is mono with a constant bit rate; `frame_header` is that of its first frame."""
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
    """Computes CRC-16/ARC, with which the tag ends."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
