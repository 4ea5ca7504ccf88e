"""Samples out of the engine become the bytes of a file, piece by piece: other speed, other rate, then the format.

A stage is a `push` for each piece and one `finish`; an `Encoder` is a few of them in a row. Nothing here waits for more
sound than a codec's own frame and look-ahead, and the joined bytes do not depend on how the sound was cut.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from oscine.audio import wav_header
from oscine.types import RequestError, unknown_choice

MIN_SPEED, MAX_SPEED = 0.25, 4.0
_RATES_HZ = (8_000, 16_000, 22_050, 24_000, 44_100, 48_000)
_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)


@dataclass(frozen=True, slots=True)
class Format:
    """`response_format` as the API has it. Lossy ones begin and end with a little silence of the codec's own:

    | | delay before the sound | silence after it |
    |---|---|---|
    | mp3 | 1105 samples | less than two frames of 576 samples (1152 from 44.1 kHz on) |
    | aac | 1024 samples | less than one frame of 1024 samples |
    | opus | none: the file tells players what to skip | none, likewise |
    """

    name: str
    media_type: str
    encoded: bool  # by libav: milliseconds rather than microseconds, so not for the event loop
    rates: tuple[int, ...]  # Hz


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "mp3": Format("mp3", "audio/mpeg", True, _RATES_HZ),
        "wav": Format("wav", "audio/wav", False, _RATES_HZ),
        "pcm": Format("pcm", "audio/pcm", False, _RATES_HZ),
        "opus": Format("opus", "audio/ogg", True, _OPUS_RATES_HZ),
        "aac": Format("aac", "audio/aac", True, _RATES_HZ),
        "flac": Format("flac", "audio/flac", True, _RATES_HZ),
    }
)


class Encoder(Protocol):
    """One stream's way from samples to bytes; not for two threads at once."""

    def push(self, pcm: bytes) -> bytes:
        """Takes PCM16 mono of any length and gives the bytes that can leave now, if any."""
        ...

    def finish(self) -> bytes:
        """The rest of the file; nothing may be pushed after it."""
        ...

    def close(self) -> None:
        """Frees what the codec holds when the listener is gone; may be called at any time, and again."""
        ...


def open_encoder(format_name: str, *, rate_hz: int, out_rate_hz: int | None = None, speed: float = 1.0) -> Encoder:
    """Checks, and no more: a codec opens with the first push, on its thread. `push(b"")` does it ahead of the sound."""
    out_rate_hz = out_rate_hz or rate_hz
    form = checked_format(format_name, out_rate_hz, speed)
    header = wav_header(out_rate_hz) if format_name == "wav" else b""
    if not form.encoded and out_rate_hz == rate_hz and speed == 1.0:
        return _PlainStage(header)

    def stages() -> list[Encoder]:
        last = _compressor(format_name, out_rate_hz) if form.encoded else _PlainStage(header)
        return [*_sound_stages(rate_hz, out_rate_hz, speed), last]

    return _Chain(stages)


def encode_whole(
    format_name: str, pcm: bytes, *, rate_hz: int, out_rate_hz: int | None = None, speed: float = 1.0
) -> bytes:
    """The file of an utterance that is complete. Where a header states the length (wav, flac), it is the true one."""
    if format_name not in ("wav", "flac"):
        encoder = open_encoder(format_name, rate_hz=rate_hz, out_rate_hz=out_rate_hz, speed=speed)
        return encoder.push(pcm) + encoder.finish()
    out_rate_hz = out_rate_hz or rate_hz
    checked_format(format_name, out_rate_hz, speed)
    sound = _Chain(lambda: _sound_stages(rate_hz, out_rate_hz, speed))
    out_pcm = sound.push(pcm) + sound.finish()
    if format_name == "wav":
        return wav_header(out_rate_hz, len(out_pcm) // 2) + out_pcm
    file = io.BytesIO()
    flac = _compressor("flac", out_rate_hz, file)
    flac.push(out_pcm)
    flac.finish()
    return file.getvalue()


def checked_format(format_name: str, out_rate_hz: int, speed: float) -> Format:
    if format_name not in FORMATS:
        raise RequestError(unknown_choice("response_format", format_name, FORMATS), "response_format")
    form = FORMATS[format_name]
    if out_rate_hz not in form.rates:
        possible = ", ".join(map(str, form.rates))
        others = [name for name, other in FORMATS.items() if out_rate_hz in other.rates]
        hint = f"; {', '.join(others)} can carry it" if others else ""
        raise RequestError(f"{format_name} cannot carry {out_rate_hz} Hz (possible: {possible}){hint}", "sample_rate")
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise RequestError(f"speed must be between {MIN_SPEED:g} and {MAX_SPEED:g}, got {speed:g}", "speed")
    return form


def _sound_stages(rate_hz: int, out_rate_hz: int, speed: float) -> list[Encoder]:
    stages: list[Encoder] = []
    if speed != 1.0:
        from oscine.server.libav_encoders import StretchStage  # here: who streams pcm does not need libav

        stages.append(StretchStage(rate_hz, speed))
    if out_rate_hz != rate_hz:
        stages.append(_ResampleStage(rate_hz, out_rate_hz))
    return stages


def _compressor(format_name: str, rate_hz: int, file: io.BytesIO | None = None) -> Encoder:
    from oscine.server.libav_encoders import RECIPES, LibavStage  # here: see above

    return LibavStage(RECIPES[format_name], rate_hz, file)


class _Chain:
    """Stages in a row, made when there is something to do for them."""

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


class _PlainStage:
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


class _ResampleStage:
    """soxr holds 35 to 80 ms back: its best filters are long, and worked in blocks."""

    def __init__(self, rate_hz: int, out_rate_hz: int) -> None:
        import soxr  # here: see above

        self._resampler = soxr.ResampleStream(rate_hz, out_rate_hz, 1, dtype="float32", quality="HQ")

    def push(self, pcm: bytes) -> bytes:
        return self._resampled(pcm, last=False) if pcm else b""

    def finish(self) -> bytes:
        return self._resampled(b"", last=True)

    def close(self) -> None:
        pass

    def _resampled(self, pcm: bytes, *, last: bool) -> bytes:
        # Floats in between: soxr dithers 16-bit output, and silence would not stay silent.
        floats = self._resampler.resample_chunk(pcm_samples(pcm).astype(np.float32), last=last)
        return cast(bytes, np.rint(floats).clip(-32768, 32767).astype("<i2").tobytes())


def pcm_samples(pcm: bytes) -> npt.NDArray[np.int16]:
    assert len(pcm) % 2 == 0, f"PCM16 comes in whole samples, got {len(pcm)} bytes"
    return np.frombuffer(pcm, dtype="<i2")
