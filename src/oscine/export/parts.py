"""Exports the parts of a checkpoint into one folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from oscine.errors import RequestError
from oscine.export.codec_step import codec_step_graph
from oscine.export.codec_window import NEW_FRAMES, codec_window_graph
from oscine.export.description import CLONING_PARTS, PARTS, ExportedFile, PartName, file_name, require_export_extra
from oscine.export.encoders import codec_encoder_graph, speaker_encoder_graph
from oscine.export.onnx_file import Graph, write_onnx
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import Kind, read_config
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model

_MODULES = {"codec-encoder": "codec_encoder", "speaker-encoder": "speaker_encoder"}  # the others: codec


def export_parts(
    model: str | os.PathLike[str],
    output: Path,
    *,
    only: Sequence[PartName] | None = None,
    left_context_frames: int | None = None,
    new_frames: int = NEW_FRAMES,
    progress: Callable[[PartName], None] = lambda part: None,
) -> list[ExportedFile]:
    """Writes codec_window.onnx, codec_step.onnx and, for a Base checkpoint, codec_encoder.onnx and
    speaker_encoder.onnx.

    `only` names the parts; by default all that the checkpoint has. `progress` is called before each.
    """
    require_export_extra()
    folder = find_checkpoint(model)
    parts = _parts(read_config(folder).kind, only)
    modules = {_MODULES.get(part, "codec") for part in parts}
    loaded = load_model(folder, device=torch.device("cpu"), parts=modules)
    files = []
    for part in parts:
        progress(part)
        source = folder if part == "speaker-encoder" else folder / "speech_tokenizer"
        graph = _graph(loaded, part, left_context_frames, new_frames)
        files.append(write_onnx(graph, output / file_name(part), source))
    return files


def _parts(kind: Kind, only: Sequence[PartName] | None) -> list[PartName]:
    available = [part for part in PARTS if kind == "base" or part not in CLONING_PARTS]
    if only is None:
        return available
    missing = [part for part in only if part not in available]
    if missing:
        raise RequestError(
            f"a {kind} checkpoint has no {' and no '.join(missing)} (possible: {', '.join(available)}); "
            "Base checkpoints clone voices and have both encoders",
            "only",
        )
    return [part for part in available if part in only]


def _graph(model: SpeechModel, part: PartName, left_context_frames: int | None, new_frames: int) -> Graph:
    if part == "codec-window":
        return codec_window_graph(model.codec, left_context_frames, new_frames)
    if part == "codec-step":
        return codec_step_graph(model.codec)
    assert model.codec_encoder is not None and model.speaker_encoder is not None
    if part == "codec-encoder":
        return codec_encoder_graph(model.codec_encoder, model.config.codec)
    return speaker_encoder_graph(model.speaker_encoder)
