"""Exports parts of a checkpoint as ONNX files and TensorRT plans, for runtimes other than PyTorch.

Each file is compared with our own module before it gets its name; `oscine export` is the command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oscine.export.codec_window import export_codec_window
    from oscine.export.description import CodecWindow, ExportedFile, read_codec_window, read_file
    from oscine.export.parts import export_parts

__all__ = ["CodecWindow", "ExportedFile", "export_codec_window", "export_parts", "read_codec_window", "read_file"]

_MODULES = {"export_codec_window": "codec_window", "export_parts": "parts"}  # they load torch, on first use


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'oscine.export' has no attribute {name!r}")
    return getattr(importlib.import_module(f"oscine.export.{_MODULES.get(name, 'description')}"), name)
