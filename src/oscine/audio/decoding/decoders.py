"""Decodes audio files to mono blocks: with libsndfile where it can, else with PyAV. decoder_process.py runs this in a
process of its own, because both are C code that parses untrusted files.

Every fault of a file raises a VoiceError about `ref_audio`; exceptions of the libraries do not leave this module.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from oscine.audio.decoding.wire import MAX_CHANNELS, ClipLimits, clip_error
from oscine.audio.pcm import Samples
from oscine.errors import VoiceError

_UNKNOWN_FRAMES = 2**60  # libsndfile reports more than this for a file without a length, such as streamed FLAC
_BLOCK_SAMPLES = 2**16

# No playlist formats: FFmpeg's hls, dash and concat demuxers open files and URLs that the upload names.
_AV_FORMATS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dsf,eac3,flac,flv,loas,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,"
    "mp2,mp3,mpc,mpc8,mpeg,mpegts,ogg,rm,spx,tak,tta,voc,w64,wav,wv"
)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    rate_hz: int
    samples: Samples  # [n], the mean of the channels


def decode(encoded: bytes, name: str, limits: ClipLimits) -> Iterator[Block]:
    """Yields blocks, and stops at the limits before the rest is decoded. Messages call the file `name`."""
    count = 0
    for block in _decode_soundfile(encoded, name, limits) or _decode_av(encoded, name):
        count += len(block.samples)
        _check_length(count, block.rate_hz, name, limits, exact=False)
        yield block


def _decode_soundfile(encoded: bytes, name: str, limits: ClipLimits) -> Iterator[Block] | None:
    """Returns None if libsndfile cannot read the format."""
    import soundfile

    try:
        file = soundfile.SoundFile(io.BytesIO(encoded))
    except Exception:  # an unknown and an unsupported format have the same error; PyAV decides
        return None
    if file.frames > _UNKNOWN_FRAMES:
        return None
    _check_channels(file.channels, name)
    if file.samplerate > 0:
        _check_length(file.frames, file.samplerate, name, limits, exact=True)
    return _soundfile_blocks(file, name)


def _soundfile_blocks(file: Any, name: str) -> Iterator[Block]:
    with file:
        try:
            for values in file.blocks(_BLOCK_SAMPLES, dtype="float32", always_2d=True):
                yield Block(int(file.samplerate), values.mean(axis=1, dtype=np.float32))
        except Exception as error:
            raise clip_error(f"{name} is damaged: {error}; export or upload the clip again") from error


def _decode_av(encoded: bytes, name: str) -> Iterator[Block]:
    """Decodes the first audio stream; video files are allowed."""
    import av

    try:
        with av.open(io.BytesIO(encoded), "r", options={"format_whitelist": _AV_FORMATS}) as container:
            if not container.streams.audio:
                raise clip_error(f"{name} ({container.format.name}) has no audio stream; use a file with audio")
            stream = container.streams.audio[0]
            stream.codec_context.thread_count = 1
            yield from _av_blocks(container.decode(stream), name)
    except (VoiceError, MemoryError):
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or error
        raise clip_error(
            f"{name} is damaged or not a known audio format ({reason}); use wav, flac, mp3, ogg, opus, m4a or webm"
        ) from error


def _av_blocks(frames: Iterator[Any], name: str) -> Iterator[Block]:
    """Averages the channels. Their number may change within a file: AAC with parametric stereo starts as mono."""
    import av

    rate_hz, channels, to_float = 0, 0, None
    for frame in frames:
        if channels != (channels := frame.layout.nb_channels) or to_float is None:
            _check_channels(channels, name)  # before its planes are touched
            to_float = av.AudioResampler(format="fltp")
        if rate_hz not in (0, frame.sample_rate):
            change = f"from {rate_hz} to {frame.sample_rate} Hz"
            raise clip_error(f"{name} changes its sample rate {change}; export the clip again with one rate")
        rate_hz = frame.sample_rate
        for planar in to_float.resample(frame):
            yield Block(rate_hz, planar.to_ndarray().mean(axis=0, dtype=np.float32))  # [channels, n]


def _check_channels(channels: int, name: str) -> None:
    if channels > MAX_CHANNELS:
        raise clip_error(f"{name} has {channels} channels, the maximum is {MAX_CHANNELS}; mix it down to mono")


def _check_length(samples: int, rate_hz: int, name: str, limits: ClipLimits, *, exact: bool) -> None:
    hint = "cut the clip and its transcript: 3 to 20 s work best"
    if samples > limits.max_s * rate_hz:
        length = f"{samples / rate_hz:.1f} s" if exact else f"more than {limits.max_s:g} s"
        raise clip_error(f"{name} has {length}, the maximum is {limits.max_s:g} s; {hint}")
    if samples > limits.max_samples:
        most = f"{limits.max_samples / 1e6:.3g} million samples per channel"
        raise clip_error(f"{name} has more than {most}; {hint}")
