"""The libraries of the extra `export`."""

from __future__ import annotations

import importlib.util

from oscine.errors import ExportError

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")


def require_export_extra() -> None:
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"exporting needs {', '.join(missing)}, not installed here; run: pip install 'oscine[export]'"
        )
