"""Clips in, WAV out: reading any common audio file, resampling it, PCM16 and WAV headers. No torch here.

Every fault of a clip is a VoiceError about `ref_audio`; no decoder's own exception passes this file.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from oscine.types import OscineError, Samples, VoiceError

MIN_RATE_HZ = 1_000
MAX_RATE_HZ = 768_000
# What one upload may cost in memory: a minute of 24-bit stereo at 192 kHz is 69 MB, ten minutes of 48 kHz stereo are
# 58 million values.
MAX_FILE_BYTES = 256 * 2**20
MAX_VALUES = 2**26
# A float clip may peak above 1 (an unlimited mix), but never this far: these are integers somebody cast.
MAX_FLOAT_PEAK = 64.0

_MAX_STATED = 2**60  # libsndfile's word for a length that is not stated, as in FLAC that was streamed: PyAV reads that

# Containers, no playlists: FFmpeg's hls, dash and concat readers would open files and addresses that an upload names.
_AV_FORMATS = (
    "aac,ac3,aiff,amr,amrnb,amrwb,ape,asf,au,avi,caf,dsf,eac3,flac,flv,loas,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,"
    "mp2,mp3,mpc,mpc8,mpeg,mpegts,ogg,rm,spx,tak,tta,voc,w64,wav,wv"
)


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    samples: Samples  # [n], mono
    rate_hz: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz


ClipSource = str | Path | bytes | tuple[npt.NDArray[np.generic], int] | Clip


def _refuse(message: str) -> VoiceError:
    return VoiceError(message, "ref_audio")


def read_clip(source: ClipSource) -> Clip:
    """A mono clip at its own rate from a file's path, a file's bytes, or an array with its rate; channels are averaged.

    A two-dimensional array may be [channels, n] or [n, channels]: the smaller side is taken as the channels, and the
    second where both are equal.
    """
    if isinstance(source, Clip):
        return _clip_from_array(source.samples, source.rate_hz)
    if isinstance(source, tuple):
        if len(source) != 2:
            raise _refuse(f"an array clip is a pair (samples, rate_hz), got a tuple of {len(source)}")
        return _clip_from_array(*source)
    if isinstance(source, str | os.PathLike):
        return _decode(_file_bytes(Path(source)), f"{str(source)!r}")
    if isinstance(source, bytes | bytearray | memoryview):
        return _decode(bytes(source), "the audio data")
    hint = ": give its rate too, as (samples, rate_hz)" if isinstance(source, np.ndarray) else ""
    raise _refuse(
        f"a reference clip is a path, a file's bytes or (samples, rate_hz), got {type(source).__name__}{hint}"
    )


def _file_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise _refuse(f"{str(path)!r} is a folder; name one audio file in it")
        if not path.exists():
            raise _refuse(f"there is no audio file {str(path.absolute())!r}; check the path")
        # A pipe or a device could block for ever or never end.
        if not path.is_file():
            raise _refuse(f"{str(path)!r} is not a regular file; save the clip to one, or hand over its bytes")
        size_bytes = path.stat().st_size
        if size_bytes > MAX_FILE_BYTES:
            raise _file_too_large(repr(str(path)), size_bytes)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, VoiceError):
            raise
        raise _refuse(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from error


def _file_too_large(name: str, size_bytes: int) -> VoiceError:
    return _refuse(
        f"{name} has {size_bytes / 2**20:.0f} MiB, at most {MAX_FILE_BYTES // 2**20} MiB are read; "
        "cut the clip to the few seconds that are needed"
    )


def _too_many_values(name: str) -> VoiceError:
    return _refuse(
        f"{name} holds more than {MAX_VALUES // 10**6} million samples over all channels; "
        "cut the clip to the few seconds that are needed"
    )


def _decode(encoded: bytes, name: str) -> Clip:
    if not encoded:
        raise _refuse(f"{name} is empty (0 bytes); was it fully written or uploaded?")
    if len(encoded) > MAX_FILE_BYTES:
        raise _file_too_large(name, len(encoded))
    decoded = _decode_soundfile(encoded, name)
    if decoded is None:
        decoded = _decode_av(encoded, name)
    samples, rate_hz = decoded
    return _checked(samples.mean(axis=1, dtype=np.float32), rate_hz, name)


def _decode_soundfile(encoded: bytes, name: str) -> tuple[Samples, int] | None:
    """[n, channels] and the rate, or None where libsndfile does not know the format."""
    import soundfile  # decoders are loaded where a clip is read: most requests bring none

    try:
        file = soundfile.SoundFile(io.BytesIO(encoded))
    except Exception:  # "not recognised" and "recognised but not supported" look the same here; PyAV decides
        return None
    with file:
        if file.frames > _MAX_STATED:
            return None
        # Before anything is decoded: a few bytes of FLAC can claim a day of silence.
        if file.frames * file.channels > MAX_VALUES:
            raise _too_many_values(name)
        try:
            return file.read(dtype="float32", always_2d=True), int(file.samplerate)
        except Exception as error:
            raise _refuse(f"{name} is damaged: {error}; export or upload the clip again") from error


def _decode_av(encoded: bytes, name: str) -> tuple[Samples, int]:
    """[n, channels] and the rate of the first audio stream; a video's sound counts."""
    import av

    blocks: list[Samples] = []
    values = 0
    try:
        with av.open(io.BytesIO(encoded), "r", options={"format_whitelist": _AV_FORMATS}) as container:
            if not container.streams.audio:
                raise _refuse(f"{name} ({container.format.name}) has no audio stream; give a file with sound")
            to_float = av.AudioResampler(format="fltp")
            rate_hz = 0
            for frame in container.decode(container.streams.audio[0]):
                rate_hz = rate_hz or frame.sample_rate
                for planar in to_float.resample(frame):
                    block = planar.to_ndarray()  # [channels, n]
                    blocks.append(block.astype(np.float32, copy=False))
                    values += block.size
                    if values > MAX_VALUES:
                        raise _too_many_values(name)
    except VoiceError:
        raise
    except Exception as error:
        raise _refuse(
            f"{name} is not audio that can be read, or is damaged ({getattr(error, 'strerror', None) or error}); "
            "use wav, flac, mp3, ogg, opus, m4a or webm"
        ) from error
    if not blocks:
        raise _refuse(f"{name} holds no sound (0 samples); was the recording stopped at once?")
    return np.concatenate(blocks, axis=1).T, rate_hz


def _clip_from_array(array: npt.NDArray[np.generic], rate_hz: int) -> Clip:
    if not isinstance(array, np.ndarray):
        raise _refuse(f"samples must be a numpy array, got {type(array).__name__}; convert with numpy.asarray")
    if array.ndim not in (1, 2):
        raise _refuse(f"samples must have 1 or 2 dimensions ([n], [channels, n] or [n, channels]), got {array.shape}")
    if array.size > MAX_VALUES:
        raise _too_many_values("the array")
    scaled = _scaled(array)
    if scaled.ndim == 2:
        channels_first = scaled.shape[0] < scaled.shape[1]
        scaled = scaled.mean(axis=0 if channels_first else 1, dtype=np.float32) if scaled.size else scaled.reshape(0)
    return _checked(scaled, rate_hz, "the array")


def _scaled(array: npt.NDArray[np.generic]) -> Samples:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is refused as such
            return array.astype(np.float32)
    if array.dtype.kind in "iu" and array.dtype.itemsize <= 4:
        half_range = 2.0 ** (8 * array.dtype.itemsize - 1)
        middle = half_range if array.dtype.kind == "u" else 0.0
        return ((array.astype(np.float64) - middle) / half_range).astype(np.float32)
    # 64-bit integers are nobody's sample format: what full scale would be is a guess.
    raise _refuse(
        f"samples of type {array.dtype} have no known full scale; give floats in -1..1 or 8, 16 or 32-bit integers"
    )


def _checked(samples: Samples, rate_hz: float, name: str) -> Clip:
    number = isinstance(rate_hz, int | float | np.integer | np.floating) and not isinstance(rate_hz, bool)
    if not number or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ or rate_hz != int(rate_hz):
        raise _refuse(
            f"{name} has a sample rate of {rate_hz!r} Hz; it must be a whole number from {MIN_RATE_HZ} to {MAX_RATE_HZ}"
        )
    if not len(samples):
        raise _refuse(f"{name} holds no sound (0 samples); was the recording stopped at once?")
    if not np.isfinite(samples).all():
        bad = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise _refuse(
            f"{name} has a sample that is no number ({samples[bad]} at {bad / rate_hz:.3f} s); export the clip again"
        )
    peak = _peak(samples)
    if peak > MAX_FLOAT_PEAK:
        raise _refuse(
            f"{name} has float samples up to {peak:.0f} where -1..1 is full scale; "
            "divide them by the scale they came from (32768 for 16-bit audio)"
        )
    return Clip(np.ascontiguousarray(samples, dtype=np.float32), int(rate_hz))


def _peak(samples: Samples) -> float:
    return float(np.abs(samples).max())


def resample(clip: Clip, rate_hz: int) -> Clip:
    """The same sound at another rate, ceil(n * ratio) samples; the very numbers of librosa's default, soxr_hq."""
    if rate_hz == clip.rate_hz:
        return clip
    import soxr

    n_samples = math.ceil(len(clip.samples) * (rate_hz / clip.rate_hz))
    # Nothing is worth keeping between calls: 10 ms of sound cost 0.1 to 0.2 ms (1 ms for a rate such as 44101), 20 s of
    # it 5 to 15 ms, and a first call at most 1 ms more than later ones.
    resampled: Samples = soxr.resample(clip.samples, clip.rate_hz, rate_hz, quality="HQ")
    # soxr rounds the length, librosa fills or cuts to the ceiling.
    resampled = np.pad(resampled[:n_samples], (0, max(0, n_samples - len(resampled))))
    return Clip(resampled, rate_hz)


def check_reference(
    clip: Clip,
    *,
    min_s: float = 0.4,  # 5 codec frames, one short word: less holds no voice to imitate
    max_s: float = 60.0,  # each second is 12.5 prompt rows in every request with this voice; 3 to 20 s do the work
    silence_dbfs: float = -60.0,  # peak; a muted microphone's noise stays below, the faintest usable speech well above
) -> None:
    """Refuses a clip from which no voice can be taken."""
    if clip.duration_s < min_s:
        raise _refuse(
            f"the reference clip is {clip.duration_s:.2f} s long, at least {min_s:g} s are needed; 3 to 20 s work best"
        )
    if clip.duration_s > max_s:
        raise _refuse(
            f"the reference clip is {clip.duration_s:.1f} s long, at most {max_s:g} s are taken; "
            "cut it (and its transcript): 3 to 20 s work best"
        )
    peak = _peak(clip.samples)
    peak_dbfs = 20 * math.log10(peak) if peak > 0 else -math.inf
    if peak_dbfs < silence_dbfs:
        raise _refuse(
            f"the reference clip is silent: it peaks at {peak_dbfs:.0f} dBFS, at least {silence_dbfs:g} is needed; "
            "check the microphone or the channel that was recorded"
        )


def pcm16(samples: Samples) -> npt.NDArray[np.int16]:
    """-1..1 to -32767..32767, values outside are clipped; nearest, a half to the even side as torch.round has it."""
    scaled: Samples = np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767))
    return scaled.astype(np.int16)


_OPEN_LENGTH = 0xFFFFFFFF


def wav_header(rate_hz: int, n_samples: int | None = None) -> bytes:
    """The 44 bytes before mono PCM16. None is for streams: sizes that players take as "until the end"."""
    data_bytes = _OPEN_LENGTH if n_samples is None else 2 * n_samples
    riff_bytes = data_bytes + 36
    if riff_bytes > _OPEN_LENGTH:  # 4 GiB is all that the format can state
        data_bytes = riff_bytes = _OPEN_LENGTH
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_bytes, b"WAVE"),
        *(b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16),
        *(b"data", data_bytes),
    )


def write_wav(path: str | Path, samples: Samples, rate_hz: int) -> None:
    """Mono PCM16. The file appears whole under its name or not at all, also when the process dies half-way."""
    wav_bytes = wav_header(rate_hz, len(samples)) + pcm16(samples).astype("<i2").tobytes()
    try:
        write_whole(Path(path), wav_bytes, "speech.wav")
    except (OSError, ValueError) as error:
        system = getattr(error, "strerror", None)  # where there is none, the words are ours and say what to do
        reason = f"{system}; choose a place that you may write to" if system else error
        raise OscineError(f"cannot write {str(path)!r}: {reason}") from error


def write_whole(target: Path, content: bytes, example: str) -> None:
    """Under its name or not at all; pipes and devices are written to, a link stays a link. Raises OSError and
    ValueError. `example`: a name that would do."""
    if target.is_dir():
        raise IsADirectoryError(f"it is a folder; add a file name, such as {example}")
    if target.exists() and not target.is_file():  # a pipe or /dev/stdout must not be replaced by a file
        with target.open("wb") as device:
            device.write(content)
        return
    target = target.resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target.parent)!r}; make it first")
    _write_and_rename(target, content)


def _write_and_rename(target: Path, content: bytes) -> None:
    # Not tempfile: its files are private to the user, and the rename would keep that.
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
