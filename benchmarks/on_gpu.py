"""Runs the GPU tests and the GPU benchmarks one after the other, the most telling first.

    python -m benchmarks.on_gpu --out docs/results [--steps tests frame server] [--size 1b7] [--seconds 1500]

Each step is a process of its own with a time limit; one that fails does not stop the others. Its output is in
<out>/logs/<step>.txt. --seconds ends the run: a step that would start later is left out, and said to be.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TAIL_LINES = 12  # of a step's output, shown when it ends
_KILLED_AFTER_S = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    limit_s: float
    module: str
    arguments: str  # {size}, {out} and {scratch} are filled in

    def command(self, size: str, out: Path, scratch: Path) -> list[str]:
        filled = self.arguments.format(size=size, out=out, scratch=scratch)
        return [sys.executable, "-m", self.module, *filled.split()]


_ROWS = "1 8 32 64 128 256"
_MODEL = "--size {size} --scratch {scratch} --out {out}"
_SIZES = "--sizes {size} --scratch {scratch} --out {out}"
STEPS = (
    Step("tests", 420, "pytest", "-m gpu -q -n 8 --dist loadfile -p no:cacheprovider --continue-on-collection-errors"),
    Step("sanitize", 400, "benchmarks.sanitize", "--out {out}"),
    Step("frame", 300, "benchmarks.frame", f"{_SIZES} --rows {_ROWS} --kernels cuda fp8 triton"),
    Step("server", 240, "benchmarks.server", f"{_SIZES} --closed 1 8 32 64 128 --open 20 100 150 230"),
    Step("first_audio", 120, "benchmarks.first_audio", f"{_MODEL} --callers 1 8 32 64 128 --seconds 5"),
    Step("startup", 240, "benchmarks.startup", f"{_MODEL} --slots 128"),
    Step("front_end", 150, "benchmarks.front_end", "--out {out} --rates 1 100 300 --streams 1000"),
    Step("clone", 240, "benchmarks.server", f"{_SIZES} --kinds clone --closed 1 8 32 128 --open 20"),
    Step("admission", 90, "benchmarks.admission", _MODEL),
    Step("prompts", 90, "benchmarks.admission", f"{_MODEL} --prompt-rows 400 --rounds 4"),
    Step("agreement", 150, "benchmarks.agreement", _SIZES),
    Step("overload", 180, "benchmarks.soak", f"{_MODEL} --overload --slots 128 --burst 256"),
    Step("soak", 300, "benchmarks.soak", f"{_MODEL} --slots 128 --seconds 150 --rate 100"),
    Step("demo", 120, "benchmarks.demo_recordings", "--out {scratch}/demo"),
    Step("times", 120, "benchmarks.cuda_chain", "--sections times --out {out}"),
    Step("checks", 240, "benchmarks.cuda_chain", "--sections checks tiled --out {scratch}"),
    Step("sweep", 150, "benchmarks.cuda_chain", "--sections sweep --out {scratch}"),
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


def main() -> None:
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--scratch", type=Path, default=Path(".cache/gpu"), help="checkpoints, and results for no page")
    parser.add_argument("--steps", nargs="+", choices=names, default=names)
    parser.add_argument("--size", choices=("1b7", "0b6"), default="1b7")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the whole run")
    options = parser.parse_args()
    begun_s = time.monotonic()
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    options.scratch.mkdir(parents=True, exist_ok=True)
    ends = {}
    for number, step in enumerate((step for step in STEPS if step.name in options.steps), start=1):
        left_s = options.seconds - (time.monotonic() - begun_s)
        if left_s <= 0:
            ends[step.name] = "left out: the time is over"
            continue
        print(f"--- {number}/{len(options.steps)} {step.name}", flush=True)
        log, step_begun_s = options.out / "logs" / f"{step.name}.txt", time.monotonic()
        command = step.command(options.size, options.out, options.scratch)
        ends[step.name] = run(command, log, min(step.limit_s, left_s))
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        print(*tail, f"{step.name}: {ends[step.name]}, {time.monotonic() - step_begun_s:.0f} s", sep="\n", flush=True)
    print("", *(f"{name:18} {end}" for name, end in ends.items()), sep="\n")
    sys.exit(any(end != "done" for end in ends.values()))


if __name__ == "__main__":
    main()
