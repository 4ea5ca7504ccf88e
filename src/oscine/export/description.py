"""Describes an exported file: the facts that a caller needs, stored in the file's own metadata. No torch here."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from oscine.errors import ExportError

PartName = Literal["codec-window", "codec-step", "codec-encoder", "speaker-encoder"]
PARTS: tuple[PartName, ...] = get_args(PartName)
CLONING_PARTS: tuple[PartName, ...] = ("codec-encoder", "speaker-encoder")  # of Base checkpoints only

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")  # of the extra `export`
KEY = "oscine"  # of the metadata: an ExportedFile as JSON; the other keys are for people


def file_name(part: PartName) -> str:
    return f"{part.replace('-', '_')}.onnx"


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """An ONNX file whose outputs were compared with our own module."""

    part: PartName
    path: Path
    facts: dict[str, Any]
    errors: dict[str, float]  # check -> difference
    tolerance: float
    error_unit: str

    @property
    def max_error(self) -> float:
        return max(self.errors.values())

    def as_json(self) -> str:
        stored = ("part", "facts", "errors", "tolerance", "error_unit")
        return json.dumps({"max_error": self.max_error} | {name: getattr(self, name) for name in stored})


@dataclass(frozen=True, slots=True)
class CodecWindow:
    """A codec decoder that gets each stream's earlier frames again with every call (`codec_window.onnx`).

    Inputs: `codes` int64 [batch, left_context_frames + N, 16], whose rows are left-aligned: context frames, then N new
    frames, then padding (any valid code); `context_frames` int64 [batch, 1], the number of context frames, 0 to
    left_context_frames. Output: `samples` float32 [batch, N * samples_per_frame], those of the new frames.
    """

    path: Path
    left_context_frames: int
    new_frames: int  # the usual N; the file takes any from 1 on
    exact_context_frames: int  # with this left context every sample is exact
    samples_per_frame: int
    sample_rate_hz: int
    codebooks: int
    codebook_size: int
    max_error: float  # onnxruntime against our module, both with this window
    context_error: float  # the window against a decoder that remembers the whole stream, random codes

    @property
    def window_frames(self) -> int:
        """Frames in one row of `codes`."""
        return self.left_context_frames + self.new_frames

    @classmethod
    def of(cls, file: ExportedFile) -> CodecWindow:
        return cls(path=file.path, max_error=file.max_error, **file.facts)


def read_codec_window(path: str | os.PathLike[str]) -> CodecWindow:
    """Reads the description of a file that `export_codec_window` has written."""
    file = read_file(path)
    if file.part != "codec-window":
        raise ExportError(f"{str(path)!r} holds the {file.part}, not the codec-window")
    return CodecWindow.of(file)


def read_file(path: str | os.PathLike[str]) -> ExportedFile:
    """Reads the description that any exported file holds."""
    require_export_extra()
    import onnx
    from google.protobuf.message import DecodeError

    try:
        stored = {one.key: one.value for one in onnx.load(path).metadata_props}.get(KEY)
    except (OSError, DecodeError) as error:
        raise ExportError(f"{str(path)!r} cannot be read as an ONNX file: {error}") from None
    if stored is None:
        raise ExportError(f"{str(path)!r} was not written by `oscine export`")
    fields = json.loads(stored)
    del fields["max_error"]
    return ExportedFile(path=Path(path), **fields)


def require_export_extra() -> None:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"exporting needs {', '.join(missing)}, not installed here; run: pip install 'oscine[export]'"
        )
