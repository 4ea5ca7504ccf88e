"""Whose voice it is: a vector for a recording, by any ONNX model of speaker verification, and how near two are."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from oscine.evaluate.optional import one_line, optional
from oscine.evaluate.recognizer import RATE_HZ
from oscine.types import RequestError, Samples

BINS = 80
_WINDOW, _HOP, _FFT = 400, 160, 512  # 25 ms every 10 ms
_LOWEST_HZ = 20.0

Matrix = npt.NDArray[np.float64]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


class OnnxSpeaker:
    """A model with one input: the waveform [1, samples] at 16 kHz, or Kaldi's filterbank [1, frames, 80], its mean over
    time taken away. Its first output is the vector."""

    def __init__(self, model: str) -> None:
        runtime = optional("onnxruntime", "onnxruntime", "quality")
        path = Path(model)
        if not path.is_file():
            raise RequestError(f"there is no speaker model {model!r}; give an ONNX file", "similarity")
        try:
            self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # its own exceptions have no common root but this
            raise RequestError(f"{model!r} is no ONNX model that can be run: {one_line(error)}", "similarity") from None
        self._name, self._input = path.name, self._only_input()
        self.embed(np.zeros(RATE_HZ, np.float32))  # what it refuses is better known before anything is spoken
        self.about = {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}

    def embed(self, sound: Samples) -> list[float]:
        if len(sound) < _WINDOW:
            sound = np.pad(sound, (0, _WINDOW - len(sound)))
        given = sound if len(self._input.shape) == 2 else filterbank(sound)
        try:
            vector = self._session.run(None, {self._input.name: given[None].astype(np.float32)})[0]
            return [float(value) for value in np.ravel(vector)]
        except Exception as error:  # as above
            raise RequestError(
                f"the speaker model {self._name} fails on {list(given[None].shape)}: {one_line(error)}", "similarity"
            ) from None

    def _only_input(self) -> Any:
        inputs = self._session.get_inputs()
        shapes = [list(one.shape) for one in inputs]
        if len(inputs) != 1 or not _fits(shapes[0]):
            raise RequestError(
                f"the speaker model takes {shapes}; one input [1, samples] or [1, frames, {BINS}] can be given, of any "
                "number of samples or frames",
                "similarity",
            )
        return inputs[0]


def _fits(shape: Sequence[object]) -> bool:
    """Numbers are fixed, all else is free."""
    wanted = {2: (1, None), 3: (1, None, BINS)}.get(len(shape))
    return wanted is not None and all(
        not isinstance(size, int) or size == given for size, given in zip(shape, wanted, strict=True)
    )


def filterbank(sound: Samples) -> Matrix:
    """[frames, 80]: logarithms of mel energies as Kaldi computes them, undithered, less their mean over time."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[::_HOP].astype(np.float64) * 32768
    frames -= frames.mean(axis=1, keepdims=True)
    emphasised = frames - 0.97 * np.concatenate((frames[:, :1], frames[:, :-1]), axis=1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(_WINDOW) / (_WINDOW - 1))) ** 0.85  # "povey"
    power = np.abs(np.fft.rfft(emphasised * window, _FFT)[:, :-1]) ** 2
    energies = np.log(np.maximum(power @ _mel_filters(), np.finfo(np.float32).eps))
    return energies - energies.mean(axis=0)


@cache
def _mel_filters() -> Matrix:
    """[256, 80]: triangles of equal width on the mel scale, from 20 Hz to 8 kHz."""
    corners = np.linspace(_mel(_LOWEST_HZ), _mel(RATE_HZ / 2), BINS + 2)
    places = _mel(np.arange(_FFT // 2) * RATE_HZ / _FFT)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    return np.maximum(0.0, np.minimum((places - left) / (middle - left), (right - places) / (right - middle)))


def _mel(hz: Any) -> Any:
    return 1127.0 * np.log1p(np.asarray(hz) / 700.0)
