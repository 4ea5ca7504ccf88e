"""Reference clips (read, check, resample), PCM16 and WAV, and atomic file writes. No torch here.

Every fault of a clip raises a VoiceError about `ref_audio`.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from oscine.audio.decoding.clip_decoder import decode_clip
from oscine.audio.decoding.wire import ANY_CLIP, MAX_FILE_BYTES, REFERENCE_CLIP, ClipLimits, clip_error
from oscine.audio.pcm import Samples
from oscine.errors import OscineError, VoiceError

MIN_RATE_HZ = 1_000
MAX_RATE_HZ = 768_000
MAX_VALUES = 2**26  # of an array; ten minutes of 48 kHz stereo are 58 million
# Float clips may peak above 1 (a mix without a limiter). A peak above this comes from integers cast to float.
MAX_FLOAT_PEAK = 64.0


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    samples: Samples  # [n], mono
    rate_hz: int

    @property
    def duration_s(self) -> float:
        return len(self.samples) / self.rate_hz


ClipSource = str | Path | bytes | tuple[npt.NDArray[np.generic], int] | Clip


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def read_clip(source: ClipSource, limits: ClipLimits = ANY_CLIP) -> Clip:
    """Reads a path, the bytes of a file, or an array with its rate. The clip becomes mono (the mean of the channels)
    and keeps its rate. A 2-D array is [channels, n] or [n, channels]: the smaller axis is the channels, or the second
    if both are equal. `limits` end the decoding of a file."""
    if isinstance(source, Clip):
        return _clip_from_array(source.samples, source.rate_hz)
    if isinstance(source, tuple):
        if len(source) != 2:
            raise clip_error(f"an array clip is a pair (samples, rate_hz), got a tuple of {len(source)}")
        return _clip_from_array(*source)
    if isinstance(source, str | os.PathLike):
        return _decode(_file_bytes(Path(source)), f"{str(source)!r}", limits)
    if isinstance(source, bytes | bytearray | memoryview):
        return _decode(bytes(source), "the audio data", limits)
    kind = "an array without its rate" if isinstance(source, np.ndarray) else type(source).__name__
    raise clip_error(f"a reference clip must be a path, the bytes of a file or (samples, rate_hz), got {kind}")


def _file_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise clip_error(f"{str(path)!r} is a folder; name one audio file in it")
        if not path.exists():
            raise clip_error(f"there is no audio file {str(path.absolute())!r}; check the path")
        # Reading a pipe or a device could block or never end.
        if not path.is_file():
            raise clip_error(f"{str(path)!r} is not a regular file; save the clip to one, or hand over its bytes")
        _check_file_size(path.stat().st_size, f"{str(path)!r}")
        return path.read_bytes()
    except VoiceError:
        raise
    except (OSError, ValueError) as error:
        raise clip_error(f"cannot read {str(path)!r}: {_reason(error)}") from error


def _check_file_size(size_bytes: int, name: str) -> None:
    if size_bytes > MAX_FILE_BYTES:
        size, limit = size_bytes / 2**20, MAX_FILE_BYTES // 2**20
        raise clip_error(f"{name} has {size:.0f} MiB; the limit is {limit} MiB; cut the clip to 3 to 20 s")


def _decode(encoded: bytes, name: str, limits: ClipLimits) -> Clip:
    if not encoded:
        raise clip_error(f"{name} is empty (0 bytes); save or upload the clip again")
    _check_file_size(len(encoded), name)
    return _checked_clip(*decode_clip(encoded, name, limits), name)


def _clip_from_array(array: npt.NDArray[np.generic], rate_hz: int) -> Clip:
    if not isinstance(array, np.ndarray):
        raise clip_error(f"samples must be a numpy array, got {type(array).__name__}; convert with numpy.asarray")
    if array.ndim not in (1, 2):
        raise clip_error(f"samples must be [n], [channels, n] or [n, channels], got shape {array.shape}")
    if array.size > MAX_VALUES:
        limit = MAX_VALUES // 10**6
        raise clip_error(f"the array has more than {limit} million samples over all channels; cut it to 3 to 20 s")
    scaled = _to_float32(array)
    if scaled.ndim == 2:
        channels_first = scaled.shape[0] < scaled.shape[1]
        scaled = scaled.mean(axis=0 if channels_first else 1, dtype=np.float32) if scaled.size else scaled.reshape(0)
    return _checked_clip(scaled, rate_hz, "the array")


def _to_float32(array: npt.NDArray[np.generic]) -> Samples:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # larger float64 values become infinite, which _checked_clip refuses
            return array.astype(np.float32)
    if array.dtype.kind in "iu" and array.dtype.itemsize <= 4:
        half_range = 2.0 ** (8 * array.dtype.itemsize - 1)
        middle = half_range if array.dtype.kind == "u" else 0.0
        return ((array.astype(np.float64) - middle) / half_range).astype(np.float32)
    # 64-bit integers have no agreed full scale.
    raise clip_error(f"samples must be floats in -1..1 or integers of 8, 16 or 32 bits, got {array.dtype}")


def _checked_clip(samples: Samples, rate_hz: float, name: str) -> Clip:
    if not len(samples):
        raise clip_error(f"{name} has no audio (0 samples); record or export the clip again")
    number = isinstance(rate_hz, int | float | np.integer | np.floating) and not isinstance(rate_hz, bool)
    if not number or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ or rate_hz != int(rate_hz):
        raise clip_error(
            f"{name} has a sample rate of {rate_hz!r} Hz; it must be a whole number from {MIN_RATE_HZ} to {MAX_RATE_HZ}"
        )
    if not np.isfinite(samples).all():
        bad = int(np.flatnonzero(~np.isfinite(samples))[0])
        raise clip_error(f"{name} has a {samples[bad]} sample at {bad / rate_hz:.3f} s; export the clip again")
    peak = float(np.abs(samples).max())
    if peak > MAX_FLOAT_PEAK:
        hint = "divide them by their full scale (32768 for 16-bit audio)"
        raise clip_error(f"{name} has float samples up to {peak:.0f}, outside of -1..1; {hint}")
    return Clip(np.ascontiguousarray(samples, dtype=np.float32), int(rate_hz))


def resample(clip: Clip, rate_hz: int) -> Clip:
    """Resamples to ceil(n * ratio) samples, bit for bit as librosa's default (soxr_hq) does."""
    if rate_hz == clip.rate_hz:
        return clip
    import soxr

    n_samples = math.ceil(len(clip.samples) * (rate_hz / clip.rate_hz))
    # No resampler is kept: the first call takes at most 1 ms more than later ones, and 20 s of audio take 5 to 15 ms.
    resampled: Samples = soxr.resample(clip.samples, clip.rate_hz, rate_hz, quality="HQ")
    # soxr rounds the length; librosa pads or cuts to the ceiling.
    resampled = np.pad(resampled[:n_samples], (0, max(0, n_samples - len(resampled))))
    return Clip(resampled, rate_hz)


def check_reference(
    clip: Clip,
    *,
    min_s: float = 0.4,  # 5 codec frames, one short word; less has too little of a voice
    max_s: float = REFERENCE_CLIP.max_s,
    silence_dbfs: float = -60.0,  # peak: noise of a muted microphone is below, the faintest usable speech well above
) -> None:
    """Raises VoiceError for a clip that is too short, too long or too quiet to clone."""
    length_s = clip.duration_s
    if length_s < min_s:
        raise clip_error(f"the reference clip has {length_s:.2f} s, the minimum is {min_s:g} s; 3 to 20 s work best")
    if length_s > max_s:
        hint = "cut the clip and its transcript: 3 to 20 s work best"
        raise clip_error(f"the reference clip has {length_s:.1f} s, the maximum is {max_s:g} s; {hint}")
    peak = float(np.abs(clip.samples).max())
    peak_dbfs = 20 * math.log10(peak) if peak > 0 else -math.inf
    if peak_dbfs < silence_dbfs:
        levels = f"its peak is {peak_dbfs:.0f} dBFS, the minimum is {silence_dbfs:g}"
        raise clip_error(f"the reference clip is silent: {levels}; check the microphone and the recorded channel")


def pcm16(samples: Samples) -> npt.NDArray[np.int16]:
    """Converts -1..1 to -32767..32767: clipped, rounded half to even as torch.round does."""
    scaled: Samples = np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767))
    return scaled.astype(np.int16)


_UNKNOWN_BYTES = 0xFFFFFFFF  # players read such a stream to its end


def wav_header(rate_hz: int, n_samples: int | None = None) -> bytes:
    """Returns the 44 bytes before mono PCM16; `n_samples` is None for streams of unknown length."""
    data_bytes = _UNKNOWN_BYTES if n_samples is None else 2 * n_samples
    riff_bytes = data_bytes + 36
    if riff_bytes > _UNKNOWN_BYTES:  # the size fields have 32 bits
        data_bytes = riff_bytes = _UNKNOWN_BYTES
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_bytes, b"WAVE"),
        *(b"fmt ", 16, 1, 1, rate_hz, 2 * rate_hz, 2, 16),
        *(b"data", data_bytes),
    )


def write_wav(path: str | Path, samples: Samples, rate_hz: int) -> None:
    """Writes mono PCM16, atomically."""
    write_audio_file(path, wav_header(rate_hz, len(samples)) + pcm16(samples).astype("<i2").tobytes())


def write_audio_file(path: str | os.PathLike[str], content: bytes) -> None:
    try:
        write_atomically(Path(path), content, "speech.wav")
    except (OSError, ValueError) as error:
        system = getattr(error, "strerror", None)  # None for our own errors, whose text already says what to do
        advice = f"{system}; choose a folder that you may write to" if system else error
        raise OscineError(f"cannot write {str(path)!r}: {advice}") from error


def write_atomically(path: Path, content: bytes, example_name: str, mode: int = 0o666) -> None:
    """Writes a temporary file and renames it, so that the old file survives a crash. Pipes and devices are written
    directly, and a link stays a link. A new file gets `mode`, less the umask. Raises OSError or ValueError."""
    if path.is_dir():
        raise IsADirectoryError(f"it is a folder; add a file name, such as {example_name}")
    if path.exists() and not path.is_file():  # a pipe or /dev/stdout must not be replaced by a file
        with path.open("wb") as device:
            device.write(content)
        return
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError("it is a link that leads back to itself; remove it")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(target.parent)!r}; create it first")
    # Not tempfile: its files are readable by their owner only, and the rename would keep that.
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
