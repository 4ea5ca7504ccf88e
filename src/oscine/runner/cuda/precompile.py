"""Compiles a checkpoint's Triton kernels before they are launched, on all cores: Triton itself compiles a kernel at its
first launch, one after the other, which took a minute.

A process of its own does it while the weights are loaded; the results are in Triton's cache on disk. A stamp in that
cache tells later starts that there is nothing to do. If it fails, kernels are compiled at their first launch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
import triton

import oscine.kernels
import oscine.runner.cuda
from oscine.kernels.shared_memory import BLOCK_BYTES
from oscine.model.config import ModelConfig
from oscine.runner.backend import BackendOptions
from oscine.runner.memory_budget import MemoryBudget

_log = logging.getLogger(__name__)

# As for the worker (engine/remote/spawn.py): the same package, and no module of the current folder.
_MAIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from oscine.runner.cuda.precompile import main
main()
"""
_MAX_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Job:
    config: ModelConfig
    budget: MemoryBudget
    options: BackendOptions
    capability: int  # 90 for 9.0

    def stamp(self) -> Path:
        """A file that exists when these programs are in the cache."""
        known = hashlib.sha256(triton.__version__.encode() + torch.__version__.encode())
        for folder in (*oscine.kernels.__path__, *oscine.runner.cuda.__path__):
            for file in sorted(Path(folder).glob("*.py")):
                known.update(file.read_bytes())
        known.update(msgspec.json.encode(self.config))
        sizes = (self.budget.slots, self.budget.positions_per_slot, self.budget.text_capacity)
        known.update(repr((sizes, self.options, self.capability)).encode())
        return Path(triton.knobs.cache.dir) / f"oscine-{known.hexdigest()[:32]}"


@contextmanager
def compiling(job: Job, progress: Callable[[int, int], None]) -> Iterator[None]:
    """Compiles while the body runs; the programs are in the cache after it."""
    process = _start(job)
    if process is None:
        yield
        return
    assert process.stdout
    try:
        yield
        for line in process.stdout:
            done, total = map(int, line.split())
            progress(done, total)
        if failed := process.wait():
            _log.warning("kernels could not be compiled ahead (status %d): each is compiled when it is used", failed)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _start(job: Job) -> subprocess.Popen[bytes] | None:
    """None if there is nothing to do, or nothing can be done ahead for this GPU."""
    if job.capability not in BLOCK_BYTES or job.stamp().exists():
        return None
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # it needs no memory of the GPU
    command = [sys.executable, "-P", "-c", _MAIN, json.dumps([*map(str, sys.path)])]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    except OSError as error:
        _log.warning("kernels cannot be compiled ahead: %s", error)
        return None
    assert process.stdin
    with contextlib.suppress(BrokenPipeError), process.stdin as to_process:
        pickle.dump(job, to_process)
    return process


def compile_job(job: Job, progress: Callable[[int, int], None]) -> None:
    """Of several processes that want the same programs, one compiles; the others wait for it."""
    import fcntl  # not on Windows

    from oscine.runner.cuda.triton_programs import (
        Compiled,
        compile_programs,
        distinct_programs,
        gpu_target,
        record_launches,
    )

    stamp, target = job.stamp(), gpu_target(job.capability)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{stamp}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists():
            return
        launches = record_launches(job.config, job.budget, job.options, BLOCK_BYTES[job.capability])
        programs = distinct_programs(launches, target)
        problems = []

        def report(compiled: Compiled, done: int) -> None:
            if compiled.problem:
                problems.append(compiled)
            progress(done, len(programs))

        compile_programs(programs, target, min(len(os.sched_getaffinity(0)), _MAX_PROCESSES), report)
        for problem in problems:
            print(f"{problem.name}: {problem.problem}", file=sys.stderr)
        if problems:
            sys.exit(1)
        stamp.touch()


def main() -> None:
    """In the process: the job on standard input, lines of progress on standard output."""
    job: Job = pickle.load(sys.stdin.buffer)
    compile_job(job, lambda done, total: print(done, total, flush=True))
