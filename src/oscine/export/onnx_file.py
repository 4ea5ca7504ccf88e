"""Writes one graph as an ONNX file: exported, compared with our own module, then given its name."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from oscine import __version__
from oscine.errors import ExportError
from oscine.export.description import KEY
from oscine.export.extra import require_export_extra

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Case:
    """Inputs of one comparison, and the outputs of our own module for them."""

    name: str
    inputs: Arrays
    expected: Arrays


@dataclass(frozen=True, slots=True)
class CaseError:
    case: str
    error: float


@dataclass(frozen=True, slots=True)
class Graph:
    """A module to export. `arguments` are examples; each dimension in `dynamic` may have another size later."""

    kind: str
    module: nn.Module
    arguments: tuple[Any, ...]
    dynamic: tuple[Any, ...]  # of each argument: {dimension: its name}
    inputs: dict[str, str]  # name -> what it is, for people
    outputs: dict[str, str]
    cases: Sequence[Case]
    tolerance: float
    facts: dict[str, Any]  # stored in the file; `max_error` is added


def write_onnx(graph: Graph, path: Path, checkpoint_sha256: str) -> list[CaseError]:
    """Writes the file and returns its errors; raises ExportError, without a file, if one exceeds the tolerance."""
    require_export_extra()
    with _replacing(path) as fresh:
        _export(graph, fresh)
        errors = compare(fresh, graph.cases)
        worst = max(errors, key=lambda one: one.error)
        if not worst.error <= graph.tolerance:  # not: NaN fails too
            raise ExportError(
                f"{path.name} differs from our own module by {worst.error:.2g} ({worst.case}); allowed is "
                f"{graph.tolerance:.2g}. No file was written. Please report the versions of torch and onnxruntime"
            )
        _append_metadata(graph, fresh, worst.error, checkpoint_sha256)
    return errors


def compare(path: Path, cases: Sequence[Case]) -> list[CaseError]:
    """The largest difference of each case, run with onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    errors = []
    for case in cases:
        made = dict(zip(case.expected, session.run(list(case.expected), case.inputs), strict=True))
        errors.append(CaseError(case.name, max(_difference(made[name], case.expected[name]) for name in made)))
    return errors


def _difference(made: npt.NDArray[Any], expected: npt.NDArray[Any]) -> float:
    if made.shape != expected.shape:
        raise ExportError(f"onnxruntime returned the shape {made.shape}; expected {expected.shape}")
    return float(np.abs(made.astype(np.float64) - expected).max(initial=0.0))


def checkpoint_sha256(folder: Path) -> str:
    """Of config.json and all weights in this folder."""
    digest = hashlib.sha256()
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it becomes `path` if nothing fails, and vanishes otherwise."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield fresh
        fresh.replace(path)
    except OSError as error:
        raise ExportError(f"cannot write {str(path)!r}: {error}") from None
    finally:
        fresh.unlink(missing_ok=True)


def _export(graph: Graph, path: Path) -> None:
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            graph.module.eval(),
            graph.arguments,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=graph.dynamic,
            dynamo=True,
            verbose=False,
            external_data=False,
        )
        assert program is not None
        program.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of torchvision, which we do not use, and of its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _append_metadata(graph: Graph, path: Path, max_error: float, sha256: str) -> None:
    import onnx

    facts = {**graph.facts, "max_error": max_error}
    entries = {
        KEY: json.dumps({"kind": graph.kind, "facts": facts}),
        "kind": graph.kind,
        "oscine_version": __version__,
        "torch_version": torch.__version__,
        "checkpoint_sha256": sha256,
        "max_error": f"{max_error:.3g}",
        "tolerance": f"{graph.tolerance:.3g}",
        "inputs": json.dumps(graph.inputs),
        "outputs": json.dumps(graph.outputs),
    }
    extra = onnx.ModelProto(
        metadata_props=[onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items()]
    )
    # Serialized protobuf messages may be joined: repeated fields continue. So the checked bytes stay as they are.
    with path.open("ab") as file:
        file.write(extra.SerializeToString())
