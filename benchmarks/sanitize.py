"""Runs the CUDA kernels of frames under NVIDIA's compute-sanitizer, on a Hopper GPU: memory that is read or written out
of bounds (memcheck), hazards in shared memory (racecheck).

    python -m benchmarks.sanitize --out docs/results [--tools memcheck racecheck synccheck] [--parts kernels frames]

compute-sanitizer is a part of the CUDA toolkit. `kernels` launches each kernel by itself, `frames` the decode step of a
model with the published widths and few layers; both with bf16 and with FP8 weights. One run has a planted error, an
index outside a table, which memcheck must find: so the tool works here and looks at our kernels. Each run is a process
of its own with a time limit.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import cuda_kernels
from benchmarks.cuda_kernels import (
    ALL_DRAWS,
    FP8_PRODUCTS,
    PRODUCTS,
    Case,
    PredictorCase,
    SampleCase,
    TalkerCase,
    WindowCase,
)
from benchmarks.results import read_arguments, save
from oscine.audio.pcm import CODEBOOKS
from oscine.kernels.cuda.compiler import default_cache
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Launch, Program
from oscine.model.config import ModelConfig

ROWS = (1, 9, 17, 40, 140)  # of products: one or two for each kernel, and more than a tile
CONTEXT = 70  # positions: more than a block of the KV cache
FRAME_ROWS = (3, 20)  # streams: products of few rows, and of many
PLANTED = "planted"
TOOLS = ("memcheck", "racecheck")
TOOLKIT = (Path("/usr/local/cuda/bin"), Path("/usr/local/cuda/compute-sanitizer"))
_FOUND = 9  # exit status when the tool has found something
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_LAUNCHED = re.compile(r"^launched (\d+) kernels$", re.MULTILINE)


@dataclass(frozen=True)
class Checked:
    """One run under a tool."""

    tool: str
    findings: int | None  # None: the tool gave no summary
    launches: int
    exit: int | str
    s: float
    report: list[str]  # lines of the tool

    @property
    def clean(self) -> bool:
        return self.findings == 0 and self.launches > 0 and self.exit == 0


# --- in the process under the tool ---


class CountingOperations(CudaOperations):
    launches = 0

    def launch(self, launch: Launch, arguments: ctypes.Structure, device: torch.device) -> None:
        super().launch(launch, arguments, device)
        type(self).launches += 1


@torch.inference_mode()
def launch_kernels(make: Callable[..., CudaOperations]) -> None:
    operations, fp8_operations = make(cuda_kernels.buffers()), make(cuda_kernels.buffers(), fp8=True)
    for products, using in ((PRODUCTS, operations), (FP8_PRODUCTS, fp8_operations)):
        for product in products.values():
            case = Case(product)
            weight = using.prepare(case.weight)
            for rows in ROWS:
                case.run(using, slice(0, rows), weight=weight)
    for position, new in ((0, 2), (9, 1), (15, 1)):
        PredictorCase(5, position, new).run(operations, 5)
    for context, rows in ((0, 1), (0, 20), (CONTEXT, 20)):  # warps without positions; an output in tiles
        TalkerCase(rows, context).run(operations, rows)
    for rows in FRAME_ROWS:
        WindowCase(rows).run(operations, rows)
    for first in (False, True):
        draw(operations, first=first)


def small_config() -> ModelConfig:
    """The configuration of 1.7B, with two layers in each stack and few texts."""
    from msgspec.structs import replace

    from benchmarks.cuda_frame import published

    config = published("1b7")
    talker, predictor = config.talker, config.predictor
    talker = replace(talker, stack=replace(talker.stack, layers=2), text_vocab=64)
    predictor = replace(predictor, stack=replace(predictor.stack, layers=2))
    return replace(config, talker=talker, predictor=predictor, tts_pad_id=3)


@torch.inference_mode()
def launch_frames(make: Callable[..., CudaOperations], device: str = "cuda") -> None:
    """Launches frames, from the talker's input rows to 16 codes of each stream."""
    from benchmarks.cuda_frame import random_model, random_slots
    from oscine.runner.cuda.decode_step import DecodeStep

    class ShortStep(DecodeStep):
        """Skips the tables of the first layer's qkv: 224 products."""

        def _qkv_tables(self) -> Tensor:
            books = self.rest_tables[: CODEBOOKS - 2]
            return books.new_empty(*books.shape[:2], self._predictor_layers[0].qkv.shape[0]).normal_()

    model = random_model(small_config(), device)
    state, kv = random_slots(model, max(FRAME_ROWS), CONTEXT)
    for fp8 in (False, True):
        step = ShortStep(model, state, kv, max(FRAME_ROWS), 1, partial(make, fp8=fp8))
        for rows in FRAME_ROWS:
            failed = torch.zeros(rows, dtype=torch.int16, device=device)
            step.sample_codes(torch.arange(rows, device=device), failed)
            assert not failed.any(), "logits are not finite"


def programs_of(parts: Sequence[str]) -> list[Program]:
    """Compiled ahead, so that no compiler runs under the tool."""
    found = []
    if "kernels" in parts:
        found += cuda_kernels.programs(ROWS, (*PRODUCTS.values(), *FP8_PRODUCTS.values()))
    if "frames" in parts:
        from oscine.runner.cuda.programs import decode_programs

        for fp8 in (False, True):
            found += decode_programs(small_config(), FRAME_ROWS, fp8=fp8)
    return found


def draw(operations: CudaOperations, slot: int | None = None, *, first: bool = False) -> None:
    case = SampleCase(5, ALL_DRAWS, first)
    if slot is not None:
        case.slots.fill_(slot)
    case.run(operations, 5)


def run_launches(what: str) -> None:
    if what == PLANTED:
        draw(CountingOperations(cuda_kernels.buffers()), slot=1 << 28)  # its settings would be 2 GiB away
    else:
        PARTS[what](CountingOperations)
    torch.cuda.synchronize()
    print(f"launched {CountingOperations.launches} kernels", flush=True)


PARTS = {"kernels": launch_kernels, "frames": launch_frames}


# --- in the process that starts the tool ---


def find_sanitizer() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, TOOLKIT)])
    return shutil.which("compute-sanitizer", path=path)


def command(program: str, tool: str, kernels: Sequence[str], *words: str) -> list[str]:
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--print-limit", "20"]
    names = f"kns={'|'.join(kernels)}"  # torch's kernels are not looked at
    return [program, *options, "--kernel-regex", names, sys.executable, "-m", "benchmarks.sanitize", *words]


def warm_up(parts: Sequence[str]) -> None:
    """Triton compiles the look-up of a frame's inputs at its first launch: here, instead of under the tool."""
    if "frames" in parts:
        subprocess.run([sys.executable, "-m", "benchmarks.sanitize", "--launches", "frames"], check=False)


def check(program: str, tool: str, kernels: Sequence[str], limit_s: float, what: str) -> Checked:
    words = command(program, tool, kernels, "--launches", what)
    # Every tensor gets memory of its own, so that an index outside it is outside of all memory.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    begun_s = time.monotonic()
    done: Any
    try:
        done = subprocess.run(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s,
            check=False,
        )  # fmt: skip
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        output, status = (error.stdout or b"").decode(errors="replace"), "timeout"
    return read_report(tool, output, status, time.monotonic() - begun_s)


def read_report(tool: str, output: str, status: int | str, took_s: float) -> Checked:
    found = _SUMMARY.search(output)
    launched = _LAUNCHED.search(output)
    lines = [line for line in output.splitlines() if line.startswith("=")] or output.splitlines()
    return Checked(
        tool=tool,
        findings=int(next(filter(None, found.groups()))) if found else None,
        launches=int(launched[1]) if launched else 0,
        exit=status,
        s=took_s,
        report=lines[-40:],
    )


def result_name(tools: Sequence[str]) -> str:
    return "-".join(["sanitize", *(() if tuple(tools) == TOOLS else tools)])


def result_key(tool: str, part: str) -> str:
    return tool if part == "kernels" else f"{tool}, {part}"


def main() -> None:
    options = read_arguments(
        __doc__, tools=(list(TOOLS), "others than all: the result's name has them"),
        parts={"nargs": "+", "choices": list(PARTS), "default": list(PARTS)}, limit_s=(120.0, "of one run"),
        launches={"choices": [PLANTED, *PARTS], "help": argparse.SUPPRESS},
    )  # fmt: skip
    if options.launches:
        run_launches(options.launches)
        return
    program = find_sanitizer()
    if program is None:
        sys.exit("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit (cuda-sanitizer)")
    # The planted error is in a kernel by itself.
    programs = programs_of(["kernels", *options.parts])
    default_cache().build(programs, lambda done, total: print(f"compiled {done} of {total}", flush=True))
    warm_up(options.parts)
    kernels = sorted({one.name for one in programs})
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    figures: dict[str, Any] = {"sanitizer": version.splitlines()[-1:], "kernels": kernels}
    planted = check(program, "memcheck", kernels, options.limit_s, PLANTED)
    figures[PLANTED] = asdict(planted)
    print(f"planted error: memcheck found {planted.findings}, {planted.s:.0f} s", flush=True)
    failed = [] if planted.findings else ["memcheck did not find the planted error"]
    for part, tool in itertools.product(options.parts, options.tools):
        name, checked = result_key(tool, part), check(program, tool, kernels, options.limit_s, part)
        figures[name] = asdict(checked)
        print(f"{name}: {checked.findings} findings in {checked.launches} launches, {checked.s:.0f} s", flush=True)
        if not checked.clean:
            failed.append(f"{name} is not clean")
            print("\n".join(checked.report), flush=True)
        saved = save(options.out, result_name(options.tools), figures | {"failures": failed})
    print(saved, flush=True)
    sys.exit("; ".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
