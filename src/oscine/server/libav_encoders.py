"""What encode.py asks of libav: the compressed formats, and another speed at the same pitch."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import cast

import av
import numpy as np
from av.audio.stream import AudioStream
from av.container import OutputContainer
from av.filter import Graph

from oscine.server.encoders import pcm_samples


class StretchStage:
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
class Recipe:
    """How libav makes a format whose bytes leave as soon as they can."""

    container: str
    codec: str
    sample_format: str
    max_bits_per_s: int = 0  # 0: lossless
    frame_s: float = 0.0  # 0: the codec has its own
    codec_options: Mapping[str, str] = field(default_factory=dict)
    container_options: Mapping[str, str] = field(default_factory=dict)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        # A Xing frame would have to be filled in at the end; a bit reservoir makes a frame wait for later ones.
        "mp3": Recipe(
            *("mp3", "libmp3lame", "s16p", 128_000),
            codec_options={"reservoir": "0", "compression_level": "5"},
            container_options={"write_xing": "0", "id3v2_version": "0"},
        ),
        # A page for each frame of 20 ms, where ogg would gather a second.
        "opus": Recipe(
            *("ogg", "libopus", "s16", 64_000),
            codec_options={"frame_duration": "20"},
            container_options={"page_duration": "20000"},
        ),
        # At these bit rates the simpler search is both faster and closer to the original.
        "aac": Recipe("adts", "aac", "fltp", 128_000, codec_options={"aac_coder": "fast"}),
        # Without 8 KiB of padding for tags that nobody will write. Frames of 40 ms cost 1 % more than the usual 96 ms.
        "flac": Recipe("flac", "flac", "s16", frame_s=0.04, container_options={"metadata_header_padding": "0"}),
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


class LibavStage:
    """Compresses. With a `file`, the bytes go there and `push` gives none: libav completes the header at the end."""

    def __init__(self, recipe: Recipe, rate_hz: int, file: io.BytesIO | None = None) -> None:
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
        if recipe.max_bits_per_s:
            self._stream.codec_context.bit_rate = min(4 * rate_hz, recipe.max_bits_per_s)
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


def _frame(pcm: bytes, rate_hz: int) -> av.AudioFrame:
    frame = av.AudioFrame.from_ndarray(pcm_samples(pcm)[np.newaxis], format="s16", layout="mono")
    frame.sample_rate = rate_hz
    return frame
