"""Compiles a checkpoint's Triton kernels before they are launched, on all cores. Triton itself compiles kernels one by
one at their first launch, which took a minute.

A process of its own compiles while the weights are loaded; the results are in Triton's cache on disk. A stamp in that
cache tells later starts that nothing is left to do. If it fails, kernels are compiled at their first launch.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
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
from oscine.kernels.primitives import BLOCK_BYTES
from oscine.model.config import ModelConfig
from oscine.process.child import Child, as_pipe, connection_to_parent, read_message, write_message
from oscine.runner.backend import BackendOptions
from oscine.runner.memory_budget import MemoryBudget

_log = logging.getLogger(__name__)

_MODULE = __name__  # what the process runs
_MAX_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Job:
    config: ModelConfig
    budget: MemoryBudget
    options: BackendOptions
    capability: int  # 90 for 9.0

    def stamp(self) -> Path:
        """Returns the path of a file that exists when these programs are in the cache."""
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
    """Compiles while the body runs; afterwards the programs are in the cache."""
    child = _start(job)
    if child is None:
        yield
        return
    with child:
        yield
        with contextlib.suppress(EOFError, OSError):
            while True:
                step, _ = read_message(child.pipe)
                progress(step["done"], step["total"])
        if failed := child.popen.wait():
            _log.warning("kernels could not be compiled ahead (status %d): each is compiled when it is used", failed)


def _start(job: Job) -> Child | None:
    """Returns None if nothing is left to do, or nothing can be compiled in advance for this GPU."""
    if job.capability not in BLOCK_BYTES or job.stamp().exists():
        return None
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # it needs no memory of the GPU
    try:
        child = Child(_MODULE, environment=environment)
    except OSError as error:
        _log.warning("kernels cannot be compiled ahead: %s", error)
        return None
    with contextlib.suppress(OSError):
        write_message(child.pipe, {}, pickle.dumps(job))
    return child


def compile_job(job: Job, progress: Callable[[int, int], None]) -> None:
    """Compiles the job's programs. If another process is compiling them, waits for it instead."""
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


def main(connection: str) -> None:
    """Compiles the job that its parent sends, and reports the progress."""
    pipe = as_pipe(connection_to_parent(connection))
    job: Job = pickle.loads(read_message(pipe)[1])
    compile_job(job, lambda done, total: write_message(pipe, {"done": done, "total": total}))
