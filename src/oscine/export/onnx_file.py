"""Exports a graph as an ONNX file, compares it with our own module, then gives the file its name."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from oscine import __version__
from oscine.commit import commit
from oscine.errors import ExportError
from oscine.export.description import KEY, ExportedFile, PartName, require_export_extra

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
RunGraph = Callable[[Arrays], Arrays]  # inputs by name -> outputs by name
Check = Callable[[RunGraph], float]  # the difference from our own module


@dataclass(frozen=True, slots=True)
class Graph:
    """A module to export."""

    part: PartName
    module: nn.Module
    arguments: tuple[Any, ...]  # examples
    dynamic: tuple[Any, ...]  # of each argument: {dimension: the name of its size}
    inputs: dict[str, str]  # name -> what it is, for people
    outputs: dict[str, str]
    checks: Mapping[str, Check]
    error_unit: str  # of the checks, for people
    tolerance: float
    facts: dict[str, Any]


def write_onnx(graph: Graph, path: Path, source: Path) -> ExportedFile:
    """Writes the file; raises ExportError, and leaves no file, if a check exceeds the tolerance.

    `source`: the folder of the weights."""
    require_export_extra()
    with _replacing(path) as fresh:
        _export(graph, fresh)
        errors = run_checks(graph, fresh)
        worst = max(errors, key=lambda name: errors[name])
        if not max(errors.values()) <= graph.tolerance:  # not: NaN fails too
            raise ExportError(
                f"{path.name} differs from our own module by {errors[worst]:.2g} ({worst}); allowed is "
                f"{graph.tolerance:.2g}, {graph.error_unit}. No file was written; please report it with your versions "
                f"of torch ({torch.__version__}), onnxscript and onnxruntime"
            )
        exported = ExportedFile(graph.part, path, graph.facts, errors, graph.tolerance, graph.error_unit)
        _append_metadata(graph, exported, fresh, source)
    return exported


def run_checks(graph: Graph, path: Path) -> dict[str, float]:
    """Runs the checks with onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays) -> Arrays:
        return dict(zip(names, session.run(names, inputs), strict=True))

    return {name: check(run) for name, check in graph.checks.items()}


def difference(made: Array, expected: Array) -> float:
    """Returns the largest absolute difference."""
    assert made.shape == expected.shape, (made.shape, expected.shape)
    return float(np.abs(made.astype(np.float64) - expected).max())


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Gives a temporary path to write to; it becomes `path` if nothing fails, and is deleted otherwise."""
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
        try:
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
        except Exception as error:  # torch.onnx's own error class is private
            raise ExportError(
                f"torch {torch.__version__} cannot export the {graph.part}: {error.__cause__ or error}; "
                "another version of torch or onnxscript may"
            ) from error
        assert program is not None
        program.save(path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides the exporter's warnings about torchvision, which we do not use, and about its own deprecated calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _append_metadata(graph: Graph, exported: ExportedFile, path: Path, source: Path) -> None:
    import onnx

    entries = {
        KEY: exported.as_json(),
        "oscine_version": __version__,
        "oscine_commit": commit(),
        "torch_version": str(torch.__version__),
        "checkpoint_sha256": weights_sha256(source),
        "inputs": json.dumps(graph.inputs),
        "outputs": json.dumps(graph.outputs),
    }
    extra = onnx.ModelProto(
        metadata_props=[onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items()]
    )
    # Serialized protobuf messages may be joined: repeated fields continue. So the checked bytes stay as they are.
    with path.open("ab") as file:
        file.write(extra.SerializeToString())


def weights_sha256(folder: Path) -> str:
    """Returns a hash of the hashes of config.json and the weights in this folder."""
    digest = hashlib.sha256()
    for path in (folder / "config.json", *sorted(folder.glob("*.safetensors"))):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
