"""Checks and times the CUDA kernels of the autoregressive chain beside the Triton ones, on a Hopper GPU.

    python -m benchmarks.cuda_chain --out docs/results [--sections checks frames-1b7 frames-0b6 times] [--rows 1 8 32]
    python -m benchmarks.cuda_chain --compile-only --compiler nvcc      # registers and spills; needs no GPU

Each section runs in a process of its own with a time limit: a kernel that crashes or hangs costs its section only. Two
are not run unless asked for: `tiled` checks the product on wgmma, `sweep` times all plans, also those that are not
chosen. The results are cuda-checks.json, cuda-tiled.json, cuda-sweep.json, and cuda-chain.json of the other sections;
the exit status tells whether any failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import cuda_kernels, cuda_plans
from benchmarks.results import read_arguments, save
from oscine.kernels.cuda.compiler import HOPPER, CompileError, CubinCache, NvccCompiler, find_compiler
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Program

LIMITS_S = {"checks": 40.0, "tiled": 30.0, "frames-1b7": 60.0, "frames-0b6": 45.0, "times": 45.0, "sweep": 120.0}
_RESULTS = {"checks": "cuda-checks", "tiled": "cuda-tiled", "sweep": "cuda-sweep"}
_WARM_PROCESSES = 8  # a Triton kernel takes a second to compile, and one process compiles one at a time
_WITHOUT_TRITON = {"tiled", "sweep"}
_WARM_LIMIT_S = 60.0
DEFAULT_SECTIONS = ("checks", "frames-1b7", "frames-0b6", "times")
DEFAULT_ROWS = (1, 8, 32, 64, 128)
SPAWN = multiprocessing.get_context("spawn")


def compile_all(cubins: CubinCache, programs: list[Program]) -> dict[str, Any]:
    """Compiles everything ahead, so that sections measure kernels. A program that fails is reported; others go on."""
    begun, failures = time.monotonic(), {}
    try:
        cubins.build(programs, lambda done, total: print(f"compiled {done} of {total}", flush=True))
    except CompileError:
        for program in dict.fromkeys(programs):
            try:
                cubins.cubin(program)
            except CompileError as error:
                failures[str(program)] = str(error)
                print(f"{program} does not compile:\n{error}", flush=True)
    count = len(set(programs))
    figures = {"compiler": cubins.compiler.identity, "programs": count, "s": time.monotonic() - begun}
    print(figures, flush=True)
    return figures | {"failures": failures}


def show_resources(compiler: NvccCompiler, programs: list[Program]) -> bool:
    """Prints registers and spilled bytes of every program; whether none spills."""

    def usage(program: Program) -> tuple[Program, int, int]:
        text = compiler.resource_usage(program, HOPPER)
        spilled = sum(int(count) for count in re.findall(r"(\d+) bytes spill", text))
        return program, int(re.findall(r"Used (\d+) registers", text)[0]), spilled

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(usage, dict.fromkeys(programs)))
    for program, registers, spilled in sorted(found, key=lambda one: str(one[0])):
        constants = " ".join(f"{name}={value}" for name, value in program.defines)
        print(f"{program.name:20} {registers:4} registers {spilled:4} bytes spilled  {constants}")
    return not any(spilled for _, _, spilled in found)


def run_section(section: str, options: argparse.Namespace, part: Path) -> None:
    """Runs in the section's own process, and leaves its figures in `part`."""
    report, cubins, rows = cuda_kernels.Report(part, LIMITS_S[section]), cubins_of(options), rows_of(section, options)

    def make(normed: Tensor, *, programmatic: bool = True) -> CudaOperations:
        return CudaOperations(normed, cubins, programmatic=programmatic)

    torch.zeros(1, device="cuda")  # makes the context in which kernels are loaded
    try:
        if section == "checks":
            cuda_kernels.run_checks(report, make)
        elif section == "times":
            cuda_kernels.run_times(report, make, rows)
        elif section == "sweep":
            cuda_plans.sweep_products(report, make(cuda_kernels.buffers()), rows, options.products)
        elif section == "tiled":
            cuda_plans.run_tiled(report, make(cuda_kernels.buffers()))
        else:
            from benchmarks.cuda_frame import run_frames  # needs msgspec, which the other sections do without

            run_frames(report, section.removeprefix("frames-"), rows, options.context, make)
    except cuda_kernels.OutOfTimeError as error:
        print(f"out of time before {error}", flush=True)
    report.save()


def cubins_of(options: argparse.Namespace) -> CubinCache:
    return CubinCache(options.cubins, NvccCompiler("nvcc") if options.compiler == "nvcc" else find_compiler())


def rows_of(section: str, options: argparse.Namespace) -> Sequence[int]:
    return options.rows or (cuda_plans.SWEEP_ROWS if section == "sweep" else DEFAULT_ROWS)


def ended(process: SpawnProcess, within_s: float) -> int | str:
    """The exit status of a process, which is killed if it hangs."""
    process.join(within_s)
    if process.exitcode is not None:
        return process.exitcode
    process.kill()
    process.join()
    return "timeout"


def start_section(section: str, options: argparse.Namespace) -> dict[str, Any]:
    print(f"--- {section}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        part, begun_s = Path(name) / "part.json", time.monotonic()
        process = SPAWN.Process(target=run_section, args=(section, options, part))
        process.start()
        code = ended(process, LIMITS_S[section] + 40)  # longer than the section's own limit: for kernels that hang
        figures = json.loads(part.read_text()) if part.exists() else {}
        return figures | {"exit": code, "s": time.monotonic() - begun_s}


def result_name(section: str) -> str:
    """So that a run of some sections does not replace what others have shown."""
    return _RESULTS.get(section, "cuda-chain")


def passed(figures: dict[str, Any]) -> bool:
    """Whether a section passed. A process that crashed early has left nothing."""
    return figures["exit"] == 0 and not figures.get("failures") and not figures.get("skipped")


def main() -> None:
    options = read_arguments(
        __doc__, cubins=Path(".cache/cubins"), compiler={"choices": ["auto", "nvcc"], "default": "auto"},
        sections={"nargs": "+", "choices": list(LIMITS_S), "default": list(DEFAULT_SECTIONS)},
        rows={"nargs": "+", "type": int, "help": f"default: {DEFAULT_ROWS}"},
        products=("", "of a sweep: those whose names begin so; default: all"), context=64,
        compile_only=(False, "needs no GPU"),
    )  # fmt: skip
    cubins = cubins_of(options)
    wanted = cuda_kernels.programs()
    if "tiled" in options.sections:
        wanted += cuda_plans.tiled_check_programs()
    if "sweep" in options.sections:
        wanted += cuda_plans.sweep_programs(rows_of("sweep", options), options.products)
    if options.compile_only and isinstance(cubins.compiler, NvccCompiler):
        sys.exit(not show_resources(cubins.compiler, wanted))
    beside_triton = bool(set(options.sections) - _WITHOUT_TRITON) and not options.compile_only
    shares = [(share, _WARM_PROCESSES) for share in range(_WARM_PROCESSES * beside_triton)]
    warming = [SPAWN.Process(target=cuda_kernels.warm_triton, args=share) for share in shares]
    for process in warming:
        process.start()
    compiled = compile_all(cubins, wanted)
    if options.compile_only:
        sys.exit(bool(compiled["failures"]))
    for process in warming:
        ended(process, _WARM_LIMIT_S)
    done: dict[str, dict[str, Any]] = {}
    for section in options.sections:
        done[section] = start_section(section, options)
        name = result_name(section)
        of_file = {other: figures for other, figures in done.items() if result_name(other) == name}
        print(save(options.out, name, {"compiled": compiled, **of_file}), flush=True)
    for section, figures in done.items():
        failures, skipped = figures.get("failures", {}), figures.get("skipped", [])
        print(f"{section}: exit {figures['exit']}, {len(failures)} failures {failures}, skipped {skipped}", flush=True)
    sys.exit(not all(passed(figures) for figures in done.values()))


if __name__ == "__main__":
    main()
