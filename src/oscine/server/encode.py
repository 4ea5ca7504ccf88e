"""Samples out of the engine become the bytes of a file, piece by piece: other speed, other rate, then the format.

A stage is a `push` for each piece and one `finish`; an `Encoder` is a few of them in a row. Nothing here waits for more
sound than a codec's own frame and look-ahead, and the joined bytes do not depend on how the sound was cut.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Protocol, cast

import av
import numpy as np
import numpy.typing as npt
import soxr
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.filter import Graph

from oscine.audio import wav_header
from oscine.types import RequestError, unknown_choice

LEAST_SPEED, MOST_SPEED = 0.25, 4.0
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
    form, out_rate_hz = _checked(format_name, out_rate_hz or rate_hz, speed)
    header = wav_header(out_rate_hz) if format_name == "wav" else b""
    if not form.encoded and out_rate_hz == rate_hz and speed == 1.0:
        return _PlainStage(header)

    def stages() -> list[Encoder]:
        last = _LibavStage(_RECIPES[format_name], out_rate_hz) if form.encoded else _PlainStage(header)
        return [*_sound_stages(rate_hz, out_rate_hz, speed), last]

    return _Chain(stages)


def encode_whole(
    format_name: str, pcm: bytes, *, rate_hz: int, out_rate_hz: int | None = None, speed: float = 1.0
) -> bytes:
    """The file of an utterance that is complete. Where a header states the length (wav, flac), it is the true one."""
    if format_name not in ("wav", "flac"):
        encoder = open_encoder(format_name, rate_hz=rate_hz, out_rate_hz=out_rate_hz, speed=speed)
        return encoder.push(pcm) + encoder.finish()
    _, out_rate_hz = _checked(format_name, out_rate_hz or rate_hz, speed)
    sound = _Chain(lambda: _sound_stages(rate_hz, out_rate_hz, speed))
    out_pcm = sound.push(pcm) + sound.finish()
    if format_name == "wav":
        return wav_header(out_rate_hz, len(out_pcm) // 2) + out_pcm
    file = io.BytesIO()
    flac = _LibavStage(_RECIPES["flac"], out_rate_hz, file)
    flac.push(out_pcm)
    flac.finish()
    return file.getvalue()


def _checked(format_name: str, out_rate_hz: int, speed: float) -> tuple[Format, int]:
    if format_name not in FORMATS:
        raise RequestError(unknown_choice("response_format", format_name, FORMATS), "response_format")
    form = FORMATS[format_name]
    if out_rate_hz not in form.rates:
        possible = ", ".join(map(str, form.rates))
        others = [name for name, other in FORMATS.items() if out_rate_hz in other.rates]
        hint = f"; {', '.join(others)} can carry it" if others else ""
        raise RequestError(f"{format_name} cannot carry {out_rate_hz} Hz (possible: {possible}){hint}", "sample_rate")
    if not LEAST_SPEED <= speed <= MOST_SPEED:
        raise RequestError(f"speed must be between {LEAST_SPEED:g} and {MOST_SPEED:g}, got {speed:g}", "speed")
    return form, out_rate_hz


def _sound_stages(rate_hz: int, out_rate_hz: int, speed: float) -> list[Encoder]:
    stages: list[Encoder] = []
    if speed != 1.0:
        stages.append(_StretchStage(rate_hz, speed))
    if out_rate_hz != rate_hz:
        stages.append(_ResampleStage(rate_hz, out_rate_hz))
    return stages


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
        self._resampler = soxr.ResampleStream(rate_hz, out_rate_hz, 1, dtype="float32", quality="HQ")

    def push(self, pcm: bytes) -> bytes:
        return self._resampled(pcm, last=False) if pcm else b""

    def finish(self) -> bytes:
        return self._resampled(b"", last=True)

    def close(self) -> None:
        pass

    def _resampled(self, pcm: bytes, *, last: bool) -> bytes:
        # Floats in between: soxr dithers 16-bit output, and silence would not stay silent.
        floats = self._resampler.resample_chunk(_samples(pcm).astype(np.float32), last=last)
        return cast(bytes, np.rint(floats).clip(-32768, 32767).astype("<i2").tobytes())


class _StretchStage:
    """Faster or slower at the same pitch (libav's atempo); `samples / speed` samples come out, to the sample."""

    _FLUSH_S = 0.1  # of silence, at least so much also when stretched: it pushes the sound through windows of 43 ms

    def __init__(self, rate_hz: int, speed: float) -> None:
        self._rate_hz, self._speed = rate_hz, speed
        self._samples_in = self._samples_out = 0
        graph = Graph()
        # One filter leaves sound out above 2 and cannot go below 0.5: outside, two of them share the work.
        each = [speed] if 0.5 <= speed <= 2.0 else [speed**0.5] * 2
        self._source = graph.add_abuffer(sample_rate=rate_hz, format="s16", layout="mono")
        filters = [graph.add("atempo", f"{tempo:.9f}") for tempo in each]
        self._sink = graph.add("abuffersink")
        graph.link_nodes(self._source, *filters, self._sink).configure()
        self._graph = graph  # filters do not keep their graph alive

    def push(self, pcm: bytes) -> bytes:
        self._samples_in += len(pcm) // 2
        return self._stretched(pcm)

    def finish(self) -> bytes:
        left_bytes = max(0, 2 * (round(self._samples_in / self._speed) - self._samples_out))
        flush_samples = round(self._FLUSH_S * max(1.0, self._speed) * self._rate_hz)
        flushed = self._stretched(bytes(2 * flush_samples))
        self._source.push(None)
        flushed += self._pulled()
        return flushed[:left_bytes].ljust(left_bytes, b"\0")

    def close(self) -> None:
        pass

    def _stretched(self, pcm: bytes) -> bytes:
        # The filter gives sound back in pieces about as long as those it is given: 20 ms, not what the engine sends.
        step_bytes = 2 * (self._rate_hz // 50)
        for start in range(0, len(pcm), step_bytes):
            self._source.push(_frame(pcm[start : start + step_bytes], self._rate_hz))
        stretched = self._pulled()
        self._samples_out += len(stretched) // 2
        return stretched

    def _pulled(self) -> bytes:
        pieces = []
        while True:
            try:
                pieces.append(cast(av.AudioFrame, self._sink.pull()).to_ndarray().tobytes())
            except (av.error.BlockingIOError, av.error.EOFError):  # all that there is for now, or ever
                return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """How libav makes a format whose bytes leave as soon as they can."""

    container: str
    codec: str
    sample_format: str
    bits_per_s_most: int = 0  # 0: lossless
    frame_s: float = 0.0  # 0: the codec has its own
    codec_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)


_RECIPES: Mapping[str, _Recipe] = MappingProxyType(
    {
        # A Xing frame would have to be filled in at the end; a bit reservoir makes a frame wait for later ones.
        "mp3": _Recipe(
            *("mp3", "libmp3lame", "s16p", 128_000),
            codec_options={"reservoir": "0", "compression_level": "5"},
            container_options={"write_xing": "0", "id3v2_version": "0"},
        ),
        # A page for each frame of 20 ms, where ogg would gather a second.
        "opus": _Recipe(
            *("ogg", "libopus", "s16", 64_000),
            codec_options={"frame_duration": "20"},
            container_options={"page_duration": "20000"},
        ),
        # At these bit rates the simpler search is both faster and closer to the original.
        "aac": _Recipe("adts", "aac", "fltp", 128_000, codec_options={"aac_coder": "fast"}),
        # Without 8 KiB of padding for tags that nobody will write. Frames of 40 ms cost 1 % more than the usual 96 ms.
        "flac": _Recipe("flac", "flac", "s16", frame_s=0.04, container_options={"metadata_header_padding": "0"}),
    }
)


class _Outbox:
    """What libav wrote and nobody has taken yet. It has no `seek`, so libav knows that this is a stream."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


class _LibavStage:
    """Compresses. With a `file`, the bytes go there and `push` gives none: libav completes the header at the end."""

    def __init__(self, recipe: _Recipe, rate_hz: int, file: io.BytesIO | None = None) -> None:
        self._container: OutputContainer | None = None  # before anything can fail: __del__ looks at it
        self._rate_hz = rate_hz
        self._samples_in = 0
        self._outbox = _Outbox()
        # bitexact: no random serial number and no version inside, so the same speech is the same file.
        options = {"fflags": "+bitexact", "flush_packets": "1", **recipe.container_options}
        container = av.open(file or self._outbox, "w", format=recipe.container, container_options=options)
        codec_options = dict(recipe.codec_options)
        if recipe.frame_s:
            codec_options["frame_size"] = str(round(recipe.frame_s * rate_hz))
        stream = container.add_stream(recipe.codec, rate=rate_hz, options=codec_options)
        self._container, self._stream = container, cast(AudioStream, stream)
        self._stream.codec_context.layout = "mono"
        self._stream.codec_context.format = recipe.sample_format
        if recipe.bits_per_s_most:
            self._stream.codec_context.bit_rate = min(4 * rate_hz, recipe.bits_per_s_most)
        container.start_encoding()  # opens the codec and writes the header, sound or none

    def push(self, pcm: bytes) -> bytes:
        assert self._container
        if pcm:
            frame = _frame(pcm, self._rate_hz)
            # Told where the sound begins, libav counts opus pages from the silence before it, as the format wants.
            frame.pts, frame.time_base = self._samples_in, Fraction(1, self._rate_hz)
            self._samples_in += frame.samples
            self._container.mux(self._stream.encode(frame))
        return self._outbox.take()

    def finish(self) -> bytes:
        assert self._container
        self._container.mux(self._stream.encode(None))
        self.close()
        return self._outbox.take()

    def close(self) -> None:
        if self._container:
            container, self._container = self._container, None
            container.close()  # writes the end of the file

    # A container and its stream hold each other: dropped without this, they would stay until the next full collection.
    def __del__(self) -> None:
        self.close()


def _samples(pcm: bytes) -> npt.NDArray[np.int16]:
    assert len(pcm) % 2 == 0, f"PCM16 comes in whole samples, got {len(pcm)} bytes"
    return np.frombuffer(pcm, dtype="<i2")


def _frame(pcm: bytes, rate_hz: int) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(_samples(pcm)[np.newaxis], format="s16", layout="mono")
    frame.sample_rate = rate_hz
    return frame
