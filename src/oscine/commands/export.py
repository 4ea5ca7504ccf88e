"""`oscine export`: the codec and the encoders as ONNX files and TensorRT plans."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from oscine.errors import RequestError, unknown_choice
from oscine.export.description import PARTS, CodecWindow, ExportedFile, PartName
from oscine.export.tensorrt import PRECISIONS, build_plan, has_trtexec, plan_path, trtexec_command

if TYPE_CHECKING:
    from oscine.export.tensorrt import Precision

_progress = Console(stderr=True)


def export(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, hub id, or 'demo'")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the files")],
    only: Annotated[str | None, typer.Option(help=f"Some of {','.join(PARTS)}; default: all in the checkpoint")] = None,
    left_context_frames: Annotated[
        int | None, typer.Option(help="Of codec-window; default: exact, or four attention windows if that is less")
    ] = None,
    new_frames: Annotated[int, typer.Option(help="Of codec-window: usual new frames per call, 80 ms each")] = 8,
    tensorrt: Annotated[
        bool, typer.Option("--tensorrt", metavar="", help="Build a plan of codec-window with trtexec")
    ] = False,
    precision: Annotated[str, typer.Option(help="Of the plan: fp16, bf16 or fp32")] = "fp16",
) -> None:
    """Write the codec and the encoders as ONNX files, each compared with Oscine's own modules."""
    parts = _parse_parts(only)
    chosen = next((one for one in PRECISIONS if one == precision), None)
    if chosen is None:
        raise RequestError(unknown_choice("precision", precision, PRECISIONS), "precision")
    if tensorrt and parts is not None and "codec-window" not in parts:
        raise RequestError("--tensorrt builds a plan of codec-window; add it to --only", "tensorrt")
    from oscine.export.parts import export_parts  # here: torch takes seconds

    files = export_parts(
        model,
        output,
        only=parts,
        left_context_frames=left_context_frames,
        new_frames=new_frames,
        progress=lambda part: _progress.print(f"exporting {part} ..."),
    )
    window = next((CodecWindow.of(file) for file in files if file.part == "codec-window"), None)
    _print_files(files, window)
    if tensorrt:
        assert window is not None
        _build(window, chosen)


def _parse_parts(only: str | None) -> list[PartName] | None:
    if only is None:
        return None
    names = [name.strip() for name in only.split(",")]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise RequestError(unknown_choice("part", unknown[0], PARTS), "only")
    return [part for part in PARTS if part in names]


def _print_files(files: list[ExportedFile], window: CodecWindow | None) -> None:
    table = Table("file", "check", "error", "allowed")
    for file in files:
        for row, (check, error) in enumerate(file.errors.items()):
            table.add_row("" if row else file.path.name, check, f"{error:.1e}", "" if row else f"{file.tolerance:.1e}")
    console = Console()
    console.print(table)
    for file in files:
        console.print(f"{file.path}: allowed error: {file.error_unit}", soft_wrap=True, highlight=False)
    if window is not None:
        console.print(
            f"{window.path}: {window.left_context_frames} frames of left context; samples of longer streams differ by "
            f"up to {window.context_error:.1e} (random codes); {window.exact_context_frames} frames are exact",
            soft_wrap=True,
            highlight=False,
        )


def _build(window: CodecWindow, precision: Precision) -> None:
    plan = plan_path(window, precision)
    if has_trtexec():
        _progress.print(f"building {plan} with trtexec (minutes) ...", soft_wrap=True, highlight=False)
        build_plan(window, plan, precision)
        print(plan)
    else:
        _progress.print("trtexec is not on PATH; on a machine that has TensorRT, run:")
        print(shlex.join(trtexec_command(window, plan, precision)))
