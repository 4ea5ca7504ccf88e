"""A voice as a value: what a clip told the encoders, kept, compared and saved without the clip or a model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oscine.audio import write_whole
from oscine.types import CODEBOOKS, Codes, Samples, VoiceError

_FORMAT = "oscine.voice.1"
_Array = TypeVar("_Array", bound="np.ndarray[Any, Any]")


@dataclass(frozen=True, eq=False)
class Voice:
    """A speaker vector; with reference codes and their transcript, a voice for in-context cloning."""

    speaker: Samples  # [talker width of the checkpoint that made it]
    reference_codes: Codes | None = None  # [frames, 16]
    transcript: str | None = None

    def __post_init__(self) -> None:
        speaker, codes = self.speaker, self.reference_codes
        if not isinstance(speaker, np.ndarray) or speaker.ndim != 1 or speaker.dtype != np.float32 or not len(speaker):
            raise VoiceError(f"a speaker vector is one row of float32, got {_described(speaker)}", "voice")
        if not np.isfinite(speaker).all():
            raise VoiceError("the speaker vector holds NaN or infinite numbers; make the voice again", "voice")
        if (codes is None) != (self.transcript is None):
            raise VoiceError("reference codes and their transcript go together; give both or neither", "voice")
        object.__setattr__(self, "speaker", _kept(speaker))
        if codes is None:
            return
        if not isinstance(self.transcript, str):
            raise VoiceError(f"a transcript is a string, got {type(self.transcript).__name__}", "voice")
        shaped = isinstance(codes, np.ndarray) and codes.ndim == 2 and codes.shape[1] == CODEBOOKS and len(codes) > 0
        if not shaped or codes.dtype != np.int64:
            raise VoiceError(f"reference codes are int64 [frames, {CODEBOOKS}], got {_described(codes)}", "voice")
        if codes.min() < 0:
            raise VoiceError("reference codes must not be negative", "voice")
        object.__setattr__(self, "reference_codes", _kept(codes))

    @staticmethod
    def from_embedding(vector: npt.ArrayLike) -> Voice:
        """A voice from a speaker vector alone, as `oscine` or another tool made it."""
        try:
            values = np.asarray(vector)
        except (TypeError, ValueError):  # rows of different lengths
            values = np.empty(0, dtype=object)
        if values.dtype.kind not in "fiu":
            raise VoiceError(f"an embedding is a list of numbers, got {_described(vector)}", "voice")
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite and is refused as such
            return Voice(values.astype(np.float32))

    @cached_property
    def content_hash(self) -> str:
        """Equal for equal voices, wherever they were made or stored."""
        digest = hashlib.sha256(_FORMAT.encode())
        parts = [self.speaker.tobytes()]
        if self.reference_codes is not None and self.transcript is not None:
            # A lone surrogate is refused where the voice is used; here it only must not be in the way.
            parts += [self.reference_codes.tobytes(), self.transcript.encode(errors="surrogatepass")]
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and other.content_hash == self.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """One safetensors file; written beside its name first, so that a crash leaves the old one whole. Pipes and
        devices are written to, a link stays a link. `notes` travel in the file and are no part of the voice."""
        tensors: dict[str, np.ndarray] = {"speaker": self.speaker}
        about = {"format": _FORMAT, "content_hash": self.content_hash}
        if self.reference_codes is not None and self.transcript is not None:
            tensors["reference_codes"] = self.reference_codes
            about["transcript"] = json.dumps(self.transcript)
        if notes:
            about["notes"] = json.dumps(dict(notes))
        try:
            write_whole(Path(path), save(tensors, metadata=about), "voice.safetensors")
        except (OSError, RuntimeError, ValueError, SafetensorError) as error:  # RuntimeError: links in a circle
            reason = getattr(error, "strerror", None) or error
            raise VoiceError(f"the voice cannot be written to {str(path)!r}: {reason}", "voice") from None

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Voice:
        return Voice.load_with_notes(path)[0]

    @staticmethod
    def load_with_notes(path: str | os.PathLike[str]) -> tuple[Voice, dict[str, str]]:
        try:
            with safe_open(path, framework="np") as file:
                about = file.metadata() or {}
                # Before any tensor is read: a whole model may stand here.
                if about.get("format") != _FORMAT:
                    raise VoiceError(f"{str(path)!r} is not a voice saved by Oscine (format {_FORMAT})", "voice")
                tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError:
            raise VoiceError(f"there is no voice file {str(path)!r}", "voice") from None
        except (SafetensorError, OSError, TypeError) as error:
            raise VoiceError(f"{str(path)!r} is not a readable voice file: {error}", "voice") from None
        try:
            transcript = json.loads(about["transcript"]) if "transcript" in about else None
            speaker: Any = tensors.get("speaker")
            voice = Voice(speaker, tensors.get("reference_codes"), transcript)
            notes = json.loads(about.get("notes", "{}"))
            if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
                raise ValueError("its notes are no table of strings")
        except ValueError as error:
            raise VoiceError(f"{str(path)!r} is a damaged voice file: {error}", "voice") from None
        if voice.content_hash != about.get("content_hash"):
            raise VoiceError(f"{str(path)!r} does not match its own content hash; it was changed or damaged", "voice")
        return voice, notes


def _kept(array: _Array) -> _Array:
    """A private copy that nobody can change: hashes and caches rely on it."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
