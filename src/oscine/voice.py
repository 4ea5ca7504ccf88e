"""A voice as a value: what a clip told the encoders, kept, compared and saved without the clip or a model."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from oscine.types import CODEBOOKS, Codes, Samples, VoiceError

_FORMAT = "oscine.voice.1"


@dataclass(frozen=True, eq=False)
class Voice:
    """A speaker vector; with reference codes and their transcript, a voice for in-context cloning."""

    speaker: Samples  # [talker width of the checkpoint that made it]
    reference_codes: Codes | None = None  # [frames, 16]
    transcript: str | None = None

    def __post_init__(self) -> None:
        if self.speaker.ndim != 1 or self.speaker.dtype != np.float32 or not len(self.speaker):
            raise VoiceError(
                f"a speaker vector is one row of float32, got {self.speaker.dtype} {list(self.speaker.shape)}", "voice"
            )
        if not np.isfinite(self.speaker).all():
            raise VoiceError("the speaker vector holds NaN or infinite numbers", "voice")
        if (self.reference_codes is None) != (self.transcript is None):
            raise VoiceError("reference codes and their transcript go together; give both or neither", "voice")
        if self.reference_codes is not None:
            codes = self.reference_codes
            if codes.ndim != 2 or codes.shape[1] != CODEBOOKS or codes.dtype != np.int64 or not len(codes):
                raise VoiceError(f"reference codes are int64 [frames, {CODEBOOKS}], got {list(codes.shape)}", "voice")
            if codes.min() < 0:
                raise VoiceError("reference codes must not be negative", "voice")

    @staticmethod
    def from_embedding(vector: npt.ArrayLike) -> Voice:
        """A voice from a speaker vector alone, as `oscine` or another tool made it."""
        try:
            values = np.asarray(vector, dtype=np.float32)
        except (TypeError, ValueError):
            raise VoiceError("an embedding is a list of numbers", "voice") from None
        return Voice(values)

    @cached_property
    def content_hash(self) -> str:
        """Equal for equal voices, wherever they were made or stored."""
        digest = hashlib.sha256(_FORMAT.encode())
        parts = [self.speaker.tobytes()]
        if self.reference_codes is not None and self.transcript is not None:
            parts += [self.reference_codes.tobytes(), self.transcript.encode()]
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and other.content_hash == self.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def save(self, path: str | os.PathLike[str]) -> None:
        """One safetensors file; written beside its name first, so that a crash leaves the old one whole."""
        target = Path(path)
        tensors: dict[str, np.ndarray] = {"speaker": self.speaker}
        about = {"format": _FORMAT, "content_hash": self.content_hash}
        if self.reference_codes is not None and self.transcript is not None:
            tensors["reference_codes"] = self.reference_codes
            about["transcript"] = json.dumps(self.transcript)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            save_file(tensors, partial, metadata=about)
            partial.replace(target)
        except (OSError, SafetensorError) as error:
            raise VoiceError(f"the voice cannot be written to {target}: {error}", "voice") from None
        finally:
            partial.unlink(missing_ok=True)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Voice:
        try:
            with safe_open(path, framework="np") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError:
            raise VoiceError(f"there is no voice file {str(path)!r}", "voice") from None
        except (SafetensorError, OSError) as error:
            raise VoiceError(f"{str(path)!r} is not a readable voice file: {error}", "voice") from None
        if about.get("format") != _FORMAT or "speaker" not in tensors:
            raise VoiceError(f"{str(path)!r} is not a voice saved by Oscine (format {_FORMAT})", "voice")
        transcript = json.loads(about["transcript"]) if "transcript" in about else None
        voice = Voice(tensors["speaker"], tensors.get("reference_codes"), transcript)
        if voice.content_hash != about.get("content_hash"):
            raise VoiceError(f"{str(path)!r} does not match its own content hash; it was changed or damaged", "voice")
        return voice
