"""A cloned voice as a value: compared, hashed, saved and loaded without the clip or a model."""

from __future__ import annotations

import hashlib
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save

from oscine.audio.clips import write_atomically
from oscine.audio.pcm import CODEBOOKS, FRAME_RATE_HZ, Codes, Samples
from oscine.errors import VoiceError

_FORMAT = "oscine.voice.1"
_SHOWN_CHARS = 40  # of a transcript in `repr`
# Of a file's header, before it is parsed: notes of the greatest length, escaped twice, have some 150 kB.
_MAX_HEADER_BYTES = 2**18
_MAX_HEADER_VALUES = 20_000  # commas and brackets; those in texts count too
_SMALL_ANGLE = 1e-6  # in radians: directions nearer than this are the same
MAX_SPEAKER_VALUE = 1e4  # far above any encoder's output, and far below where the model's sums overflow


@dataclass(frozen=True, eq=False, repr=False)
class Voice:
    """A speaker vector (timbre only), or with reference codes and their transcript a voice for in-context cloning."""

    speaker: Samples  # [talker width of the checkpoint that encoded it]
    reference_codes: Codes | None = None  # [frames, 16]
    transcript: str | None = None

    def __post_init__(self) -> None:
        speaker, codes = self.speaker, self.reference_codes
        if not isinstance(speaker, np.ndarray) or speaker.ndim != 1 or speaker.dtype != np.float32 or not len(speaker):
            raise VoiceError(f"a speaker vector must be one row of float32, got {_described(speaker)}", "voice")
        if not np.isfinite(speaker).all():
            raise VoiceError("the speaker vector has NaN or infinite numbers; compute it again", "voice")
        if (largest := float(np.abs(speaker).max())) > MAX_SPEAKER_VALUE:
            raise VoiceError(
                f"the speaker vector has numbers up to {largest:.3g}, the limit is {MAX_SPEAKER_VALUE:g}; compute it "
                "again with this model's speaker encoder",
                "voice",
            )
        if (codes is None) != (self.transcript is None):
            raise VoiceError("reference codes and their transcript go together: give both or neither", "voice")
        object.__setattr__(self, "speaker", _frozen_copy(speaker))
        if codes is None:
            return
        if not isinstance(self.transcript, str):
            raise VoiceError(f"a transcript must be a string, got {type(self.transcript).__name__}", "voice")
        well_shaped = isinstance(codes, np.ndarray) and codes.shape[1:] == (CODEBOOKS,) and len(codes) > 0
        if not well_shaped or codes.dtype != np.int64:
            raise VoiceError(f"reference codes must be int64 [frames, {CODEBOOKS}], got {_described(codes)}", "voice")
        if codes.min() < 0:
            raise VoiceError("reference codes must not be negative", "voice")
        object.__setattr__(self, "reference_codes", _frozen_copy(codes))

    def __repr__(self) -> str:
        if self.reference_codes is None or self.transcript is None:
            return f"Voice(timbre only, {self.content_hash[:8]})"
        duration_s = len(self.reference_codes) / FRAME_RATE_HZ
        words = textwrap.shorten(self.transcript, _SHOWN_CHARS, placeholder="...")
        return f"Voice({duration_s:.1f} s of reference: {words!r}, {self.content_hash[:8]})"

    @staticmethod
    def from_embedding(vector: npt.ArrayLike) -> Voice:
        """A voice from a speaker vector alone, which `oscine` or another tool computed."""
        try:
            values = np.asarray(vector)
        except (TypeError, ValueError):  # rows of different lengths
            values = np.empty(0, dtype=object)
        if values.dtype.kind not in "fiu":
            raise VoiceError(f"an embedding must be a list of numbers, got {_described(vector)}", "voice")
        with np.errstate(over="ignore"):  # larger float64 values become infinite, which __post_init__ refuses
            return Voice(values.astype(np.float32))

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the content: equal for equal voices."""
        digest = hashlib.sha256(_FORMAT.encode())
        fields = [self.speaker.tobytes()]
        if self.reference_codes is not None and self.transcript is not None:
            # surrogatepass: a lone surrogate is refused when the voice is used, not here.
            fields += [self.reference_codes.tobytes(), self.transcript.encode(errors="surrogatepass")]
        for field in fields:
            digest.update(len(field).to_bytes(8, "little") + field)
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voice) and other.content_hash == self.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def to_bytes(self, notes: Mapping[str, str] | None = None) -> bytes:
        """One safetensors file. `notes` are stored with the voice and are not part of it."""
        tensors: dict[str, np.ndarray] = {"speaker": self.speaker}
        metadata = {"format": _FORMAT, "content_hash": self.content_hash}
        if self.reference_codes is not None and self.transcript is not None:
            tensors["reference_codes"] = self.reference_codes
            metadata["transcript"] = json.dumps(self.transcript)
        if notes:
            metadata["notes"] = json.dumps(dict(notes))
        return save(tensors, metadata=metadata)

    def save(
        self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None, *, private: bool = False
    ) -> None:
        """Writes the file atomically. A `private` file can be read by its owner only."""
        try:
            mode = 0o600 if private else 0o666
            write_atomically(Path(path), self.to_bytes(notes), "voice.safetensors", mode)
        except (OSError, ValueError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise VoiceError(f"the voice cannot be written to {str(path)!r}: {reason}", "voice") from None

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Voice:
        """The voice of a file that `save` wrote. Raises VoiceError."""
        return Voice.load_with_notes(path)[0]

    @staticmethod
    def load_with_notes(path: str | os.PathLike[str]) -> tuple[Voice, dict[str, str]]:
        """Returns the voice, as `load` does, and the notes that were saved with it."""
        shown = repr(str(path))
        try:
            with safe_open(path, framework="np") as file:
                metadata = file.metadata() or {}
                _check_format(metadata, shown)  # before reading tensors: the file may be a whole model
                tensors: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError:
            raise VoiceError(f"there is no voice file {shown}", "voice") from None
        except (SafetensorError, OSError, TypeError) as error:
            raise VoiceError(f"{shown} is not a readable voice file: {error}", "voice") from None
        return _from_file(tensors, metadata, shown)

    @staticmethod
    def from_bytes(content: bytes) -> tuple[Voice, dict[str, str]]:
        """The voice and the notes of a file's content. Raises VoiceError."""
        shown = "the file"
        try:
            header_bytes = int.from_bytes(content[:8], "little")
            encoded = content[8 : 8 + header_bytes]
            if len(encoded) > _MAX_HEADER_BYTES or sum(map(encoded.count, (b",", b"[", b"{"))) > _MAX_HEADER_VALUES:
                raise VoiceError(f"{shown} is not a readable voice file: its header is too large", "voice")
            header = json.loads(encoded) if header_bytes < len(content) else {}
            metadata = header.get("__metadata__") if isinstance(header, dict) else None
            metadata = metadata if isinstance(metadata, dict) else {}
            _check_format(metadata, shown)
            tensors = load_tensors(content)  # checks the header too
        except VoiceError:
            raise
        except (SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
            reason = "its header is not JSON" if isinstance(error, ValueError | RecursionError) else error
            raise VoiceError(f"{shown} is not a readable voice file: {reason}", "voice") from None
        return _from_file(tensors, metadata, shown)


def blended(parts: Sequence[tuple[Voice, float]]) -> Voice:
    """The voice between others, of which only the timbre counts: its direction lies on the arc between theirs, its
    length is their mean. The order of the parts does not matter. Raises VoiceError."""
    parts = sorted(parts, key=lambda part: (part[0].content_hash, part[1]))
    if len({voice.content_hash for voice, _ in parts}) == 1:
        return Voice(parts[0][0].speaker)
    direction, length, weights = np.zeros(0), 0.0, 0.0
    for voice, weight in parts:
        vector = voice.speaker.astype(np.float64)
        size = _length(vector)
        if size == 0:
            raise VoiceError("a voice whose speaker vector is all zeros cannot be mixed; leave it out", "voice")
        weights += weight
        share = weight / weights  # of what is mixed so far
        length += (size - length) * share
        direction = _between(direction, vector / size, share) if len(direction) else vector / size
    return Voice((direction * length).astype(np.float32))


def _between(start: npt.NDArray[Any], end: npt.NDArray[Any], share: float) -> npt.NDArray[Any]:
    """The direction at this share of the arc between two."""
    angle = 2 * np.arctan2(_length(end - start), _length(end + start))
    if angle > np.pi - _SMALL_ANGLE:
        message = "two voices of the mix point in opposite directions, so there is none between them; change a weight"
        raise VoiceError(message, "voice")
    if angle < _SMALL_ANGLE:
        return start
    mixed = (np.sin((1 - share) * angle) * start + np.sin(share * angle) * end) / np.sin(angle)
    return mixed / _length(mixed)


def _length(vector: npt.NDArray[Any]) -> float:
    return float(np.sqrt((vector * vector).sum()))  # numpy's own sum: a BLAS may add in another order


def _check_format(metadata: Mapping[str, str], shown: str) -> None:
    if metadata.get("format") != _FORMAT:
        raise VoiceError(f"{shown} is not a voice file of Oscine (format {_FORMAT})", "voice")


def _from_file(tensors: Mapping[str, Any], metadata: Mapping[str, str], shown: str) -> tuple[Voice, dict[str, str]]:
    """Checks everything: the file may come from anywhere."""
    try:
        transcript = json.loads(metadata["transcript"]) if "transcript" in metadata else None
        speaker: Any = tensors.get("speaker")
        voice = Voice(speaker, tensors.get("reference_codes"), transcript)
        notes = json.loads(metadata.get("notes", "{}"))
        if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
            raise ValueError("its notes are not a table of strings")
    except (ValueError, RecursionError) as error:
        raise VoiceError(f"{shown} is a damaged voice file: {error}", "voice") from None
    if voice.content_hash != metadata.get("content_hash"):
        raise VoiceError(f"{shown} does not match its content hash; it was changed or damaged", "voice")
    return voice, notes


def _frozen_copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only copy: hashes and caches rely on it."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def _described(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
