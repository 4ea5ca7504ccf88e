"""Clips that strangers might send, made when they are needed: small files, some of which used to crash the server, take
hundreds of megabytes, or fail with an internal error. `python -m tests.corpora.clips FOLDER` writes them."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile

from oscine.audio.pcm import Samples

RATE_HZ = 24_000


@dataclass(frozen=True)
class ClipCase:
    make: Callable[[], bytes]
    refusal: str | None  # part of the message; None: the clip is read
    duration_s: float = 0.5  # of a clip that is read


def tone(duration_s: float = 0.5, rate_hz: int = RATE_HZ, hz: float = 440.0, peak: float = 0.5) -> Samples:
    n = np.arange(int(duration_s * rate_hz))
    return (peak * np.sin(2 * np.pi * hz * n / rate_hz)).astype(np.float32)


def with_soundfile(samples: np.ndarray[Any, Any], rate_hz: int = RATE_HZ, **how: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, **({"format": "WAV"} | how))
    return file.getvalue()


def with_libav(
    samples: Samples, rate_hz: int, container: str, codec: str, sample_format: str, layout: str = "stereo"
) -> bytes:
    """Every channel has the same samples."""
    file = io.BytesIO()
    with av.open(file, "w", format=container) as out:
        stream: Any = out.add_stream(codec, rate=rate_hz, layout=layout)
        interleaved = np.repeat(samples, av.AudioLayout(layout).nb_channels)[None]
        frame = av.AudioFrame.from_ndarray(interleaved, format="flt", layout=layout)
        frame.sample_rate = rate_hz
        to_codec = av.AudioResampler(sample_format, layout, rate_hz, stream.codec_context.frame_size or 4096)
        for piece in [*to_codec.resample(frame), *to_codec.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    return file.getvalue()


def adts(rate_hz: int, layout: str, duration_s: float = 0.5, peak: float = 0.5) -> bytes:
    """Raw AAC frames: two such files one after the other are a file."""
    return with_libav(tone(duration_s, rate_hz, peak=peak), rate_hz, "adts", "aac", "fltp", layout)


def video_only() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        stream: Any = out.add_stream("mpeg4", rate=10, width=16, height=16, pix_fmt="yuv420p")
        out.mux(stream.encode(av.VideoFrame(16, 16, "yuv420p")))
        out.mux(stream.encode(None))
    return file.getvalue()


def wav_that_promises(samples: int) -> bytes:
    """A header for so many samples, and a thousand of them."""
    size = min(2 * samples, 0xFFFFFFF0)
    header = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", size, b"WAVE", b"fmt ", 16, 1, 1, RATE_HZ, 2 * RATE_HZ, 2, 16)
    return header + struct.pack("<4sI", b"data", size) + bytes(2000)


def flac_that_promises(samples: int) -> bytes:
    """STREAMINFO with so many samples (36 bits), and the frames of half a second."""
    content = bytearray(with_soundfile(tone(), format="FLAC"))
    packed = int.from_bytes(content[18:26], "big") & ~(2**36 - 1) | samples
    content[18:26] = packed.to_bytes(8, "big")
    return bytes(content)


CLIPS: dict[str, ClipCase] = {
    # Good ones.
    "wav": ClipCase(lambda: with_soundfile(tone()), None),
    "flac": ClipCase(lambda: with_soundfile(tone(), format="FLAC"), None),
    "mp3": ClipCase(lambda: with_libav(tone(rate_hz=44_100), 44_100, "mp3", "libmp3lame", "fltp"), None),
    "m4a": ClipCase(lambda: with_libav(tone(rate_hz=44_100), 44_100, "mp4", "aac", "fltp"), None),
    "webm": ClipCase(lambda: with_libav(tone(rate_hz=48_000), 48_000, "webm", "libopus", "flt"), None),
    "seven channels": ClipCase(
        lambda: with_libav(tone(rate_hz=48_000), 48_000, "mp4", "aac", "fltp", "6.1"), None
    ),
    # Frames of eight planes and more made PyAV read beyond its pointers: a segmentation fault of the whole server.
    "7.1 m4a": ClipCase(
        lambda: with_libav(tone(0.1, 48_000), 48_000, "mp4", "aac", "fltp", "7.1"), "8 channels, the maximum is 7"
    ),
    "7.1 webm": ClipCase(
        lambda: with_libav(tone(0.1, 48_000), 48_000, "webm", "libopus", "flt", "7.1"), "8 channels, the maximum is 7"
    ),
    "7.1 mka": ClipCase(
        lambda: with_libav(tone(0.1), RATE_HZ, "matroska", "pcm_s16le", "s16", "7.1"), "8 channels, the maximum is 7"
    ),
    "hexadecagonal mka": ClipCase(
        lambda: with_libav(tone(0.1), RATE_HZ, "matroska", "pcm_s16le", "s16", "hexadecagonal"), "16 channels"
    ),
    "24-channel wav": ClipCase(lambda: with_soundfile(np.stack([tone(0.1)] * 24, axis=1)), "24 channels"),
    # A few kilobytes that hold hours.
    "wavpack of silence": ClipCase(
        lambda: with_libav(np.zeros(61 * 96_000, np.float32), 96_000, "wv", "wavpack", "u8p", "mono"), "more than 60 s"
    ),
    "minutes of aac": ClipCase(lambda: adts(96_000, "mono", peak=0.0) * 400, "more than 60 s"),
    "flac that promises a day": ClipCase(lambda: flac_that_promises(86_400 * RATE_HZ), "86400.0 s, the maximum is 60"),
    "wav that promises a day": ClipCase(lambda: wav_that_promises(86_400 * RATE_HZ), None, 1000 / RATE_HZ),
    # Streams that change on the way.
    "mono then stereo aac": ClipCase(lambda: adts(RATE_HZ, "mono") + adts(RATE_HZ, "stereo"), None, 1.0),
    "stereo then mono aac": ClipCase(lambda: adts(RATE_HZ, "stereo") + adts(RATE_HZ, "mono"), None, 1.0),
    "aac of two rates": ClipCase(lambda: adts(RATE_HZ, "mono") + adts(48_000, "mono"), "changes its sample rate"),
    # No audio.
    "nothing": ClipCase(lambda: b"", "empty (0 bytes)"),
    "no samples": ClipCase(lambda: with_soundfile(np.zeros(0, np.float32)), "0 samples"),
    "video": ClipCase(video_only, "no audio stream"),
    "prose": ClipCase(lambda: b"This is a letter, not a recording.\n" * 50, "not a known audio format"),
    "hls playlist": ClipCase(
        lambda: b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n", "not a known"
    ),
    "concat playlist": ClipCase(lambda: b"ffconcat version 1.0\nfile /etc/passwd\n", "not a known audio format"),
    "samples that are not numbers": ClipCase(
        lambda: with_soundfile(np.full(9000, np.nan, np.float32), subtype="FLOAT"), "nan sample"
    ),
    "half an m4a": ClipCase(
        lambda: with_libav(tone(rate_hz=44_100), 44_100, "mp4", "aac", "fltp")[:2000], "not a known audio format"
    ),
}  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CLIPS.items():
        (folder / name.replace(" ", "_")).write_bytes(case.make())
