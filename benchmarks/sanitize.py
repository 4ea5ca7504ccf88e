"""Runs the CUDA kernels of frames under NVIDIA's compute-sanitizer, on a Hopper GPU: memory that is read or written out
of bounds (memcheck), hazards in shared memory (racecheck).

    python -m benchmarks.sanitize --out docs/results [--tools memcheck racecheck synccheck]

compute-sanitizer is a part of the CUDA toolkit. One run has a planted error, an index outside a table, which memcheck
must find: so the tool works here and looks at our kernels. Each run is a process of its own with a time limit.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import cuda_kernels
from benchmarks.cuda_kernels import ALL_DRAWS, PRODUCTS, Case, PredictorCase, SampleCase, TalkerCase
from benchmarks.results import save
from oscine.kernels.cuda.compiler import default_cache
from oscine.kernels.cuda.operations import CudaOperations
from oscine.kernels.cuda.program import Launch

ROWS = (1, 9, 17, 40, 140)  # of products: one or two for each kernel, and more than a tile
CONTEXT = 70  # positions: more than a block of the KV cache
PLANTED = "planted"
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
def launch_all() -> None:
    operations = CountingOperations(cuda_kernels.buffers())
    for product in PRODUCTS.values():
        case = Case(product)
        for rows in ROWS:
            case.run(operations, slice(0, rows))
    for position, new in ((0, 2), (9, 1), (15, 1)):
        PredictorCase(5, position, new).run(operations, 5)
    for context, rows in ((0, 1), (0, 20), (CONTEXT, 20)):  # warps without positions; an output in tiles
        TalkerCase(rows, context).run(operations, rows)
    for first in (False, True):
        draw(operations, first=first)


def draw(operations: CudaOperations, slot: int | None = None, *, first: bool = False) -> None:
    case = SampleCase(5, ALL_DRAWS, first)
    if slot is not None:
        case.slots.fill_(slot)
    case.run(operations, 5)


def run_launches(planted: bool) -> None:
    if planted:
        draw(CountingOperations(cuda_kernels.buffers()), slot=1 << 28)  # its settings would be 2 GiB away
    else:
        launch_all()
    torch.cuda.synchronize()
    print(f"launched {CountingOperations.launches} kernels", flush=True)


# --- in the process that starts the tool ---


def find_sanitizer() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, TOOLKIT)])
    return shutil.which("compute-sanitizer", path=path)


def command(program: str, tool: str, kernels: Sequence[str], *words: str) -> list[str]:
    options = ["--tool", tool, "--error-exitcode", str(_FOUND), "--print-limit", "20"]
    names = f"kns={'|'.join(kernels)}"  # torch's kernels are not looked at
    return [program, *options, "--kernel-regex", names, sys.executable, "-m", "benchmarks.sanitize", *words]


def check(program: str, tool: str, kernels: Sequence[str], limit_s: float, *, planted: bool = False) -> Checked:
    words = command(program, tool, kernels, "--launches", *([f"--{PLANTED}"] if planted else []))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--tools", nargs="+", default=["memcheck", "racecheck"])
    parser.add_argument("--limit-s", type=float, default=180.0, help="of one run")
    parser.add_argument("--launches", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(f"--{PLANTED}", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launches:
        run_launches(options.planted)
        return
    program = find_sanitizer()
    if program is None:
        sys.exit("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit (cuda-sanitizer)")
    programs = cuda_kernels.programs(ROWS)
    default_cache().build(programs, lambda done, total: print(f"compiled {done} of {total}", flush=True))
    kernels = sorted({one.name for one in programs})
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    figures: dict[str, Any] = {"sanitizer": version.splitlines()[-1:], "kernels": kernels}
    planted = check(program, "memcheck", kernels, options.limit_s, planted=True)
    figures[PLANTED] = asdict(planted)
    print(f"planted error: memcheck found {planted.findings}, {planted.s:.0f} s", flush=True)
    failed = [] if planted.findings else ["memcheck did not find the planted error"]
    for tool in options.tools:
        checked = check(program, tool, kernels, options.limit_s)
        figures[tool] = asdict(checked)
        print(f"{tool}: {checked.findings} findings in {checked.launches} launches, {checked.s:.0f} s", flush=True)
        if not checked.clean:
            failed.append(f"{tool} is not clean")
            print("\n".join(checked.report), flush=True)
    print(save(options.out, "sanitize", figures | {"failures": failed}), flush=True)
    sys.exit("; ".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
