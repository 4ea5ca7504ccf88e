"""PCM16 audio: the shape of the model's output, and levels in dBFS (0 is a full-scale square wave). No torch here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]
FLOOR_DBFS = -80.0  # lower levels are reported as this one
_FULL_SCALE = 32768


def amplitude(level_dbfs: float) -> float:
    return _FULL_SCALE * 10.0 ** (level_dbfs / 20)


def first_audible(pcm: Pcm, threshold_dbfs: float) -> int | None:
    """Returns the index of the first sample above the threshold."""
    audible = np.abs(pcm.astype(np.int32)) > amplitude(threshold_dbfs)  # int32: -32768 has no absolute value in int16
    return int(audible.argmax()) if audible.any() else None


def rms_dbfs(frames: Pcm) -> npt.NDArray[np.float32]:
    """Returns the level of each row: [n, samples] -> [n], at least FLOOR_DBFS."""
    samples = frames.astype(np.float32)
    power = np.einsum("ij,ij->i", samples, samples) / (_FULL_SCALE**2 * max(1, frames.shape[1]))
    return np.maximum(FLOOR_DBFS, 10 * np.log10(power + 1e-12)).astype(np.float32)


# --- The shape of the model's output: frames of codes and samples.


FRAME_RATE_HZ = 12.5
CODEBOOKS = 16
Codes = npt.NDArray[np.int64]  # [frames, 16]
Samples = npt.NDArray[np.float32]  # mono, -1..1


def samples_of(pcm: bytes) -> Samples:
    """The floats of PCM16 that `audio.clips.pcm16` made."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32767)
