"""Encoder stages that use libav: the compressed formats, and a change of speed at the same pitch."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.filter import Graph


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """The libav settings of a format, chosen so that bytes leave as soon as possible."""

    container: str
    codec: str
    sample_format: str
    max_bits_per_s: int = 0  # 0: lossless
    frame_s: float = 0.0  # 0: the codec's own
    codec_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)


# A bit reservoir would make a frame wait for later ones. libav's own Xing frame is off by up to 46 samples of padding;
# encoders.py writes one.
MP3 = CodecSettings(
    *("mp3", "libmp3lame", "s16p", 128_000),
    codec_options={"reservoir": "0", "compression_level": "5"},
    container_options={"write_xing": "0", "id3v2_version": "0"},
)
# One page per frame of 20 ms; by default ogg collects a second.
OPUS = CodecSettings(
    *("ogg", "libopus", "s16", 64_000),
    codec_options={"frame_duration": "20"},
    container_options={"page_duration": "20000"},
)
# At these bit rates the simpler search is both faster and closer to the original.
AAC = CodecSettings("adts", "aac", "fltp", 128_000, codec_options={"aac_coder": "fast"})
# Without 8 KiB of padding for tags. Frames of 40 ms cost 1 % more than the usual 96 ms.
FLAC = CodecSettings("flac", "flac", "s16", frame_s=0.04, container_options={"metadata_header_padding": "0"})
MULAW, WAV_MULAW = (CodecSettings(container, "pcm_mulaw", "s16") for container in ("mulaw", "wav"))
ALAW, WAV_ALAW = (CodecSettings(container, "pcm_alaw", "s16") for container in ("alaw", "wav"))
G722, WAV_G722 = (CodecSettings(container, "g722", "s16") for container in ("g722", "wav"))


class TempoStage:
    """Changes the speed at the same pitch (libav's atempo). The output has exactly `samples / speed` samples."""

    # Silence that flushes the filter's windows of 43 ms, also when stretched.
    _FLUSH_S = 0.1

    def __init__(self, rate_hz: int, speed: float) -> None:
        self._rate_hz, self._speed = rate_hz, speed
        self._samples_in = self._samples_out = 0
        graph = Graph()
        # One filter skips audio above 2 and cannot go below 0.5: outside that range, two filters share the work.
        tempos = [speed] if 0.5 <= speed <= 2.0 else [speed**0.5] * 2
        self._source = graph.add_abuffer(sample_rate=rate_hz, format="s16", layout="mono")
        filters = [graph.add("atempo", f"{tempo:.9f}") for tempo in tempos]
        self._sink = graph.add("abuffersink")
        graph.link_nodes(self._source, *filters, self._sink).configure()
        self._graph = graph  # filters do not keep their graph alive

    def push(self, pcm: bytes) -> bytes:
        self._samples_in += len(pcm) // 2
        return self._filtered(pcm)

    def finish(self) -> bytes:
        left_bytes = max(0, 2 * (round(self._samples_in / self._speed) - self._samples_out))
        flush_samples = round(self._FLUSH_S * max(1.0, self._speed) * self._rate_hz)
        flushed = self._filtered(bytes(2 * flush_samples))
        self._source.push(None)
        flushed += self._pulled()
        return flushed[:left_bytes].ljust(left_bytes, b"\0")

    def close(self) -> None:
        pass

    def _filtered(self, pcm: bytes) -> bytes:
        # The filter returns pieces about as long as its input: 20 ms keeps the latency low.
        step_bytes = 2 * (self._rate_hz // 50)
        for start in range(0, len(pcm), step_bytes):
            self._source.push(_frame(pcm[start : start + step_bytes], self._rate_hz))
        filtered = self._pulled()
        self._samples_out += len(filtered) // 2
        return filtered

    def _pulled(self) -> bytes:
        pieces = []
        while True:
            try:
                pieces.append(cast(av.AudioFrame, self._sink.pull()).to_ndarray().tobytes())
            except (av.error.BlockingIOError, av.error.EOFError):  # no output now, or no more at all
                return b"".join(pieces)


class _WriteBuffer:
    """Collects what libav writes. Without a `seek`, libav treats it as a stream."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken


class CompressStage:
    """Compresses audio. With a `file`, libav writes there and completes the header at the end, and `push` returns
    b""."""

    def __init__(self, settings: CodecSettings, rate_hz: int, file: io.BytesIO | None = None) -> None:
        self._container: OutputContainer | None = None  # set before anything can fail: __del__ reads it
        self._rate_hz = rate_hz
        self._samples_in = 0
        self.packets = 0  # frames of the codec
        self._written = _WriteBuffer()
        # bitexact: no random serial number and no version inside, so the same speech gives the same file.
        options = {"fflags": "+bitexact", "flush_packets": "1", **settings.container_options}
        container = av.open(file or self._written, "w", format=settings.container, container_options=options)
        codec_options = dict(settings.codec_options)
        if settings.frame_s:
            codec_options["frame_size"] = str(round(settings.frame_s * rate_hz))
        stream = container.add_stream(settings.codec, rate=rate_hz, options=codec_options)
        self._container, self._stream = container, cast(AudioStream, stream)
        self._stream.codec_context.layout = "mono"
        self._stream.codec_context.format = settings.sample_format
        if settings.max_bits_per_s:
            self._stream.codec_context.bit_rate = min(4 * rate_hz, settings.max_bits_per_s)
        container.start_encoding()  # opens the codec and writes the header

    def push(self, pcm: bytes) -> bytes:
        assert self._container
        if pcm:
            frame = _frame(pcm, self._rate_hz)
            # With these timestamps libav counts opus pages from the codec's leading silence, as the format requires.
            frame.pts, frame.time_base = self._samples_in, Fraction(1, self._rate_hz)
            self._samples_in += frame.samples
            self._mux(frame)
        return self._written.take()

    def finish(self) -> bytes:
        assert self._container
        self._mux(None)
        self.close()
        return self._written.take()

    def _mux(self, frame: av.AudioFrame | None) -> None:
        assert self._container
        packets = self._stream.encode(frame)
        self.packets += len(packets)
        self._container.mux(packets)

    def close(self) -> None:
        if self._container:
            container, self._container = self._container, None
            container.close()  # writes the end of the file

    # A container and its stream reference each other: without this they would live until the next full collection.
    def __del__(self) -> None:
        self.close()


def _frame(pcm: bytes, rate_hz: int) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(np.frombuffer(pcm, "<i2")[np.newaxis], format="s16", layout="mono")
    frame.sample_rate = rate_hz
    return frame
