"""Computes speaker embeddings with an ONNX model for speaker verification, and their cosine similarity."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oscine.audio.pcm import Samples
from oscine.errors import RequestError
from oscine_eval.optional import import_for_transcriber, one_line
from oscine_eval.recognizer import RATE_HZ

BINS = 80
_WINDOW = 400  # samples of one filterbank frame, 25 ms


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0


class OnnxSpeakerEncoder:
    """A model with one input: the waveform [1, samples] at 16 kHz, or Kaldi's filterbank [1, frames, 80] minus its mean
    over time. Its first output is the embedding."""

    def __init__(self, model: str) -> None:
        runtime = import_for_transcriber("onnxruntime", "onnxruntime", "quality")
        path = Path(model)
        if not path.is_file():
            raise RequestError(f"there is no speaker model {model!r}; give an ONNX file", "similarity")
        try:
            self._session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions have no other common base
            raise RequestError(f"cannot load the ONNX model {model!r}: {one_line(error)}", "similarity") from None
        self._name, self._input = path.name, self._only_input()
        self.embed(np.zeros(RATE_HZ, np.float32))  # fails now rather than after all texts were recorded
        self.about = {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()[:16]}

    def embed(self, audio: Samples) -> list[float]:
        audio = np.pad(audio, (0, max(0, _WINDOW - len(audio))))
        features = (audio if len(self._input.shape) == 2 else filterbank(audio))[None].astype(np.float32)
        try:
            vector = self._session.run(None, {self._input.name: features})[0]
            return [float(value) for value in np.ravel(vector)]
        except Exception as error:  # as above
            reason = f"the speaker model {self._name} fails on {list(features.shape)}: {one_line(error)}"
            raise RequestError(reason, "similarity") from None

    def _only_input(self) -> Any:
        inputs = self._session.get_inputs()
        shapes = [list(one.shape) for one in inputs]
        if len(inputs) != 1 or not _is_supported(shapes[0]):
            raise RequestError(
                f"the speaker model takes {shapes}; it must take one input [1, samples] or [1, frames, {BINS}] of any "
                "length",
                "similarity",
            )
        return inputs[0]


def _is_supported(shape: Sequence[object]) -> bool:
    """Whether the model's input shape fits. Integers are fixed sizes; names and None are free."""
    supported = {2: (1, None), 3: (1, None, BINS)}.get(len(shape))
    return supported is not None and all(
        not isinstance(size, int) or size == given for size, given in zip(shape, supported, strict=True)
    )


def filterbank(audio: Samples) -> Samples:
    """Returns [frames, 80]: Kaldi's log mel energies without dither, minus their mean over time."""
    kaldi = import_for_transcriber("kaldi_native_fbank", "kaldi-native-fbank", "quality")
    options = kaldi.FbankOptions()
    options.frame_opts.samp_freq, options.frame_opts.dither, options.mel_opts.num_bins = RATE_HZ, 0.0, BINS
    extractor = kaldi.OnlineFbank(options)
    extractor.accept_waveform(RATE_HZ, (audio * 32768).tolist())
    extractor.input_finished()
    energies: Samples = np.stack([extractor.get_frame(at) for at in range(extractor.num_frames_ready)])
    return energies - energies.mean(axis=0)
