"""Runs the GPU tests and the GPU benchmarks one after the other, the most telling first.

    python -m benchmarks.on_gpu --list                                  the steps, and about how long each takes
    python -m benchmarks.on_gpu --out docs/results [--steps frame server tests] [--seconds 570]

Each step is a process of its own with a time limit, and saves its own result; one that fails does not stop the others.
Its output is in <out>/logs/<step>.txt. --seconds ends the run: a step that is likely to take longer than what is left
is left out, and said to be. Where a machine ends every command after ten minutes, name the steps of each in turn.
Durations are estimates for an H200, with the random checkpoint that a step writes and the kernels that it compiles.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report_table import ROOT
from benchmarks.results import SCRATCH, read_arguments
from oscine_bench.record import shown_command

_TAIL_LINES = 12  # of a step's output, shown when it ends
_KILLED_AFTER_S = 10.0
_TRITON_SERVER = ".venv-tritonserver/bin/python"  # made by `make tritonserver`


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    takes_s: float
    limit_s: float
    module: str
    arguments: str  # {out} and {scratch} are filled in
    python: str = ""  # in the repository; default, and where it is missing: this one

    def command(self, out: Path, scratch: Path) -> list[str]:
        other = ROOT / self.python
        filled = self.arguments.format(out=out, scratch=scratch)
        return [str(other) if self.python and other.exists() else sys.executable, "-m", self.module, *filled.split()]


_PLACES = "--scratch {scratch} --out {out}"
_LARGE, _SMALL = f"--size 1b7 {_PLACES}", f"--size 0b6 {_PLACES}"
_ROWS = "1 8 32 64 128 256"
_CLOSED, _OPEN = "--closed 1 8 32 64 128", "--open 20 100 150 230"
_CALLERS = "--callers 1 8 32 64 128 --seconds 5"
_LISTENERS = "--widths published --process --listeners 1 8 32 64 128 --churn 500"
_TRITON = "--slots 128 --callers 1 8 32 128 --rounds 2 --duration 5 --warmup 1.5"

STEPS = (
    # The frame and the server of 1.7B.
    Step("frame", 180, 300, "benchmarks.frame", f"--sizes 1b7 {_PLACES} --rows {_ROWS} --kernels cuda fp8 triton"),
    Step("server", 130, 240, "benchmarks.server", f"--sizes 1b7 {_PLACES} {_CLOSED} {_OPEN}"),
    Step("tests", 470, 590, "benchmarks.gpu_tests", "--out {out}"),
    Step("checks", 130, 240, "benchmarks.cuda_chain", "--sections tiled checks --out {out}"),
    Step("sanitize", 120, 590, "benchmarks.sanitize", "--out {out}"),
    Step("engine", 90, 200, "benchmarks.model", _LARGE),
    Step("first_audio", 80, 150, "benchmarks.first_audio", f"{_LARGE} {_CALLERS}"),
    Step("startup", 120, 240, "benchmarks.startup", f"{_LARGE} --slots 128"),
    # With 1 s, the larger burst has refusals, whose Retry-After is tested; nobody is refused in the smaller one.
    Step("overload", 135, 220, "benchmarks.soak", f"{_LARGE} --overload --slots 128 --burst 256 768 --queue-wait-s 1"),
    Step("server_256", 50, 120, "benchmarks.server", f"--sizes 1b7 {_PLACES} --slots 256 --closed 256 --open"),
    Step("search", 110, 200, "benchmarks.server", f"--sizes 1b7 {_PLACES} --closed --open 230 300 --search"),
    Step("listeners", 60, 150, "benchmarks.listeners", f"{_LARGE} {_LISTENERS}"),
    Step("times", 90, 150, "benchmarks.cuda_chain", "--sections times --out {out}"),
    Step("codec", 60, 120, "benchmarks.codec_times", "--out {out}"),
    # Other parts of the server.
    Step("admission", 50, 100, "benchmarks.admission", _LARGE),
    Step("prompts", 50, 100, "benchmarks.admission", f"{_LARGE} --prompt-rows 400 --rounds 4"),
    Step("front_end", 130, 220, "benchmarks.front_end", "--out {out} --rates 1 100 300 --streams 1000"),
    Step("clone", 120, 240, "benchmarks.server", f"--sizes 1b7 {_PLACES} --kinds clone --closed 1 8 32 128 --open 20"),
    Step("agreement", 110, 180, "benchmarks.agreement", f"--sizes 1b7 {_PLACES}"),
    Step("triton", 230, 400, "benchmarks.triton_overhead", f"{_LARGE} {_TRITON}", _TRITON_SERVER),
    Step("short_soak", 170, 260, "benchmarks.soak", f"{_LARGE} --slots 128 --seconds 110 --rate 100"),
    Step("soak", 530, 590, "benchmarks.soak", f"{_LARGE} --slots 128 --seconds 450 --rate 100"),
    # The smaller model.
    Step("frame_0b6", 130, 240, "benchmarks.frame", f"--sizes 0b6 {_PLACES} --rows {_ROWS} --kernels cuda triton"),
    Step("server_0b6", 120, 240, "benchmarks.server", f"--sizes 0b6 {_PLACES} {_CLOSED} {_OPEN}"),
    Step("first_audio_0b6", 70, 150, "benchmarks.first_audio", f"{_SMALL} {_CALLERS}"),
    Step("startup_0b6", 110, 240, "benchmarks.startup", f"{_SMALL} --slots 128"),
    Step("admission_0b6", 50, 100, "benchmarks.admission", _SMALL),
    # Checks and figures that change with little of the code.
    Step("model", 120, 240, "benchmarks.check_model", _PLACES),
    Step("python_api", 50, 120, "benchmarks.python_api", _LARGE),
    Step("demo", 120, 240, "benchmarks.demo_recordings", "--out {scratch}/demo"),
    Step("sweep", 150, 200, "benchmarks.cuda_chain", "--sections sweep --out {out}"),
)


def run(command: list[str], log: Path, limit_s: float) -> str:
    """How the step ended, in a word or two. A step that outlives its limit is killed, with all its processes."""
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_AFTER_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"cut off after {limit_s:.0f} s"
    return "done" if status == 0 else f"failed with status {status}"


def run_step(step: Step, out: Path, scratch: Path, left_s: float) -> str:
    """How it ended. The last lines of its output are shown."""
    log, begun_s = out / "logs" / f"{step.name}.txt", time.monotonic()
    ended = run(step.command(out, scratch), log, min(step.limit_s, left_s))
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    print(*tail, f"{step.name}: {ended}, {time.monotonic() - begun_s:.0f} s", sep="\n", flush=True)
    return ended


def listed(steps: Sequence[Step]) -> str:
    """`so far`: of this step and those before it."""
    lines, total_s = [f"{'step':15} {'about':>6} {'limit':>6} {'so far':>7}  command"], 0.0
    for step in steps:
        total_s += step.takes_s
        command = shown_command(["-m", step.module, *step.arguments.split()], "python")
        lines.append(f"{step.name:15} {step.takes_s:4.0f} s {step.limit_s:4.0f} s {total_s:5.0f} s  {command}")
    return "\n".join(lines)


def main() -> None:
    names = [step.name for step in STEPS]
    options = read_arguments(
        __doc__, scratch=(SCRATCH, "checkpoints and recordings"),
        steps={"nargs": "+", "choices": names, "default": names}, seconds=(float("inf"), "of the whole run"),
        list=(False, "show the steps and run none"),
    )  # fmt: skip
    steps = [step for step in STEPS if step.name in options.steps]
    if options.list:
        print(listed(steps))
        return
    begun_s = time.monotonic()
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    options.scratch.mkdir(parents=True, exist_ok=True)
    ends = {}
    for number, step in enumerate(steps, start=1):
        left_s = options.seconds - (time.monotonic() - begun_s)
        if left_s < step.takes_s:
            ends[step.name] = f"left out: it takes about {step.takes_s:.0f} s, and {max(0.0, left_s):.0f} s are left"
            continue
        print(f"--- {number}/{len(steps)} {step.name}", flush=True)
        ends[step.name] = run_step(step, options.out, options.scratch, left_s)
    print("", *(f"{name:18} {end}" for name, end in ends.items()), sep="\n")
    sys.exit(any(end != "done" for end in ends.values()))


if __name__ == "__main__":
    main()
