"""What an exported file is: the facts that a server needs to call it, stored in the file's own metadata. No torch."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oscine.errors import ExportError

KEY = "oscine"  # of the metadata: the whole description as JSON; the other keys are for people


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


def read_codec_window(path: str | os.PathLike[str]) -> CodecWindow:
    """The description of a file that `export_codec_window` has written."""
    facts = read_description(Path(path), "codec-window")
    try:
        return CodecWindow(path=Path(path), **facts)
    except TypeError as error:
        raise ExportError(
            f"{str(path)!r} was written by another version of Oscine ({error}); export it again"
        ) from None


def read_description(path: Path, kind: str) -> dict[str, Any]:
    from oscine.export.extra import require_export_extra

    require_export_extra()
    import onnx
    from google.protobuf.message import DecodeError

    try:
        stored = {one.key: one.value for one in onnx.load(path).metadata_props}.get(KEY)
    except (OSError, DecodeError) as error:
        raise ExportError(f"{str(path)!r} cannot be read as an ONNX file: {error}") from None
    description = json.loads(stored) if stored else {}
    if description.get("kind") != kind:
        raise ExportError(f"{str(path)!r} is not a {kind} file of `oscine export`")
    return dict(description["facts"])
