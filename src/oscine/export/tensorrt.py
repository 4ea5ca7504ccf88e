"""Builds TensorRT plans of the codec window with NVIDIA's `trtexec`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal, get_args

from oscine.errors import ExportError
from oscine.export.description import CodecWindow

Precision = Literal["fp16", "bf16", "fp32"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PROGRAM = "trtexec"

_BATCHES = (1, 8, 64)  # of the profile: minimum, optimum, maximum
_FLAGS: dict[Precision, str] = {"fp16": "--fp16", "bf16": "--bf16", "fp32": "--noTF32"}
_SHOWN_LINES = 5


def plan_path(window: CodecWindow, precision: Precision) -> Path:
    """Returns the plan's path, next to the ONNX file."""
    return window.path.with_name(f"{window.path.stem}_{precision}.plan")


def trtexec_command(window: CodecWindow, plan: Path, precision: Precision = "fp16") -> list[str]:
    """Returns a command with one profile: 1 to 64 streams, one new frame to the window's length."""
    context = window.left_context_frames
    frames = (context + 1, window.window_frames, window.window_frames)
    shapes = [
        f"codes:{batch}x{length}x{window.codebooks},context_frames:{batch}x1"
        for batch, length in zip(_BATCHES, frames, strict=True)
    ]
    profile = [f"--{bound}Shapes={shape}" for bound, shape in zip(("min", "opt", "max"), shapes, strict=True)]
    return [PROGRAM, f"--onnx={window.path}", f"--saveEngine={plan}", *profile, _FLAGS[precision], "--skipInference"]


def has_trtexec() -> bool:
    return shutil.which(PROGRAM) is not None


def build_plan(window: CodecWindow, plan: Path, precision: Precision = "fp16") -> None:
    """Runs `trtexec`, which takes minutes; the plan gets its name only if it succeeds."""
    fresh = plan.with_name(f".{plan.name}")
    try:
        done = subprocess.run(
            trtexec_command(window, fresh, precision),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode or not fresh.exists():
            last = "\n".join(done.stdout.strip().splitlines()[-_SHOWN_LINES:]) or "it printed nothing"
            raise ExportError(f"{PROGRAM} failed (exit status {done.returncode}) and wrote no plan:\n{last}")
        fresh.replace(plan)
    except OSError as error:
        raise ExportError(f"cannot run {PROGRAM} or write {str(plan)!r}: {error}") from None
    finally:
        fresh.unlink(missing_ok=True)
