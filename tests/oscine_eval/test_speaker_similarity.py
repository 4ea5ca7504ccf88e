"""Speaker embeddings with a scripted ONNX runtime, and the filterbank."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oscine.errors import RequestError
from oscine_eval.recognizer import RATE_HZ
from oscine_eval.speaker_similarity import OnnxSpeakerEncoder, cosine, filterbank
from tests.oscine_eval.test_transcriber import sound_of


def scripted_runtime(shape: list[object], fault: str = "") -> SimpleNamespace:
    """A model whose vector is the mean of each column, or the mean of the wave."""

    def session(path: str, providers: list[str]) -> SimpleNamespace:
        def run(outputs: None, given: dict[str, np.ndarray]) -> list[np.ndarray]:
            if fault:
                raise RuntimeError(fault)
            (sound,) = given.values()
            assert sound.dtype == np.float32 and sound.shape[0] == 1
            return [np.stack([sound.mean(), sound.std()]) if sound.ndim == 2 else sound.std(axis=1)]

        return SimpleNamespace(get_inputs=lambda: [SimpleNamespace(name="x", shape=shape)], run=run)

    return SimpleNamespace(InferenceSession=session)


@pytest.mark.parametrize(("shape", "length"), [([1, "samples"], 2), ([1, "frames", 80], 80), ([1, "t", "bins"], 80)])
def test_a_speaker_model_gets_the_waveform_or_its_filterbank(
    shape: list[object], length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", scripted_runtime(shape))
    (tmp_path / "voice.onnx").write_bytes(b"weights")
    speaker = OnnxSpeakerEncoder(str(tmp_path / "voice.onnx"))
    assert len(speaker.embed(sound_of("Hello there."))) == length
    assert len(speaker.embed(np.zeros(10, np.float32))) == length  # shorter than one window


@pytest.mark.parametrize("shape", [[1, "t", 40], [1, 16000], [1, 300, 80], [4, "samples"], ["samples"]])
def test_a_speaker_model_with_other_inputs_is_refused(
    shape: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", scripted_runtime(shape))
    (tmp_path / "voice.onnx").write_bytes(b"weights")
    with pytest.raises(RequestError, match=r"it must take one input \[1, samples\] or \[1, frames, 80\]"):
        OnnxSpeakerEncoder(str(tmp_path / "voice.onnx"))
    with pytest.raises(RequestError, match="there is no speaker model"):
        OnnxSpeakerEncoder(str(tmp_path / "none.onnx"))


def test_a_failing_speaker_model_is_refused_at_startup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", scripted_runtime([1, "samples"], "bad\nnode"))
    (tmp_path / "voice.onnx").write_bytes(b"weights")
    with pytest.raises(RequestError, match=r"voice\.onnx fails on \[1, 16000\]: bad node"):
        OnnxSpeakerEncoder(str(tmp_path / "voice.onnx"))


def test_cosine_similarity_ignores_length() -> None:
    assert cosine([1.0, 2.0], [2.0, 4.0]) == pytest.approx(1.0)
    assert cosine([1.0, 0.0], [0.0, 3.0]) == 0.0
    assert cosine([1.0, 0.0], [-1.0, 0.0]) == -1.0
    assert cosine([0.0, 0.0], [1.0, 0.0]) == 0.0


def test_the_filterbank_has_kaldis_default_settings() -> None:
    """Values of a double-precision implementation; single precision shows where there is almost no energy."""
    at_s = np.arange(1600) / RATE_HZ
    chirp = (0.3 * np.sin(2 * np.pi * (200 * at_s + 15000 * at_s**2))).astype(np.float32)
    found = filterbank(chirp)
    assert found.shape == (8, 80)
    golden = {(0, 0): 3.268, (0, 10): 11.743, (3, 25): 0.359, (5, 40): 8.574, (7, 79): 0.629, (4, 60): 0.451}
    assert {place: float(found[place]) for place in golden} == {
        place: pytest.approx(value, abs=0.02) for place, value in golden.items()
    }
