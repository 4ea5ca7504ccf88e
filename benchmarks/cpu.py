"""Measures published sizes on a CPU with random weights: talker, predictor, codec and the whole, in fp32, bf16, int8,
beside each other in one process; first audio; memory and loading in a process of their own.

    python -m benchmarks.cpu [--sizes 0b6 1b7] [--kinds fp32 int8] [--listeners 1 2 4] [--threads 2] [--seconds 420]

All kinds take turns, and the best of each figure counts: other programs can only make a frame slower. Every size gets
the same share of the time, and at least one turn; a busy machine can therefore take longer than --seconds. What one
thread computes is timed in its CPU time: so a frame has a second figure, that of cores that nothing else uses.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoints import random_weights
from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.report_sections import cpu_tables
from benchmarks.report_table import SIZES
from benchmarks.results import SCRATCH, read_arguments, save, stopwatch
from benchmarks.timing import time_ticks
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.engine.build import prepare_device
from oscine.request import SpeechRequest
from oscine.runner.cpu.backend import CpuBackend
from oscine.runner.cpu.codec import CodecThread
from oscine.runner.slot_runner import SlotRunner

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.float32}
_POSITIONS = 256  # of a slot
_TURN_FRAMES = 6
TEXT = "Hello there, how are you today?"


@dataclass
class Best:
    """The least seconds of each part of a frame; of the frame itself, the least mean of a turn."""

    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, part: str, seconds: float) -> None:
        self.seconds[part] = min(seconds, self.seconds.get(part, seconds))

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
            begun_s = clock()
            result = call(*args)
            self.note(part, clock() - begun_s)
            return result

        return run


class Speaker:
    """One kind of weights on the backend that serves them, with clocks around its parts."""

    def __init__(self, folder: Path, kind: str, slots: int) -> None:
        self.loaded = LoadedCheckpoint.load(folder, CPU, DTYPES[kind], int8=kind == "int8")
        self.backend = CpuBackend(self.loaded.model, self.loaded.budget(slots, _POSITIONS, prefix_bytes=0))
        self.best: dict[str, Best] = {}  # by listeners

    def turn(self, listeners: int) -> None:
        """Speaks a few frames of so many streams."""
        best, backend = self.best.setdefault(str(listeners), Best()), self.backend
        codec = backend.codec._codec if isinstance(backend.codec, CodecThread) else backend.codec
        parts = (("talker", backend, "_talker_step"), ("predictor", backend, "_frame_codes"), ("codec", codec, "run"))
        for part, owner, name in parts:
            setattr(owner, name, best.timed(part, getattr(type(owner), name).__get__(owner)))
        slots, runner = [*range(listeners)], SlotRunner(backend)
        runner.launch = best.timed("launch", runner.launch)  # type: ignore[method-assign]
        with backend.launching():
            begun_s = time.perf_counter()
            for slot in slots:
                runner.admit(self.loaded.assign(slot, SpeechRequest(text=TEXT, seed=slot, max_new_tokens=60)))
            runner.collect(runner.launch(slots))
            best.note("first_audio", time.perf_counter() - begun_s)
            best.note("frame", statistics.fmean(time_ticks(runner, slots, _TURN_FRAMES, CPU).wall_ms) / 1e3)
            for slot in slots:
                runner.release(slot)

    def figures(self) -> dict[str, Any]:
        found = {}
        for listeners, best in self.best.items():
            times, audio_s = best.seconds, int(listeners) / FRAME_RATE_HZ
            codec_s = times["codec"] if isinstance(self.backend.codec, CodecThread) else 0.0
            undisturbed_s = max(times["launch"], codec_s)
            found[listeners] = {f"{part}_ms": 1e3 * seconds for part, seconds in times.items()} | {
                "x_real_time": audio_s / times["frame"],
                "undisturbed_ms": 1e3 * undisturbed_s,
                "x_real_time_undisturbed": audio_s / undisturbed_s,
            }
        return found


def resident_mib() -> dict[str, int]:
    """Memory of this process: in all, and of that what the system can drop, because it is mapped from files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[name].split()[0]) // 1024 for key, name in (("all", "VmRSS"), ("mapped", "RssFile"))}


def alone(folder: Path, kind: str) -> dict[str, Any]:
    """Seconds to load, and memory after a frame, in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure_alone, folder, kind).result()


def measure_alone(folder: Path, kind: str) -> dict[str, Any]:
    prepare_device(CPU)
    begun_s = time.perf_counter()
    speaker = Speaker(folder, kind, 1)
    loaded_s = time.perf_counter() - begun_s
    speaker.turn(1)
    return {"loaded_s": loaded_s, "resident_mib": resident_mib()}


def instruction_sets() -> list[str]:
    """Returns those that matter for products."""
    known = {"AVX2": "avx2", "AVX-512": "avx512", "VNNI": "vnni", "BF16": "avx512_bf16", "AMX": "amx_tile"}
    return [name for name, flag in known.items() if getattr(torch.cpu, f"_is_{flag}_supported", bool)()]


def measure(options: Any, size: str, say: Callable[[str], None]) -> dict[str, Any]:
    until_s = time.monotonic() + options.seconds / len(options.sizes)
    folder = random_weights(options.scratch, size)
    figures: dict[str, Any] = {}
    for kind in options.kinds:
        figures[kind] = alone(folder, kind)
        say(f"{SIZES[size]} {kind}: loaded in {figures[kind]['loaded_s']:.1f} s, {figures[kind]['resident_mib']} MiB")
    speakers = {kind: Speaker(folder, kind, max(options.listeners)) for kind in options.kinds}
    turns = 0
    while not turns or time.monotonic() < until_s:
        for listeners in options.listeners:
            for kind, speaker in speakers.items():
                with ThreadPoolExecutor(1) as thread:  # a new one: the backend changes torch's threads of its own
                    thread.submit(speaker.turn, listeners).result()
                say(f"{SIZES[size]} {kind}, {listeners} at once: {speaker.figures()[str(listeners)]}")
                if turns and time.monotonic() > until_s:
                    break
        turns += 1
    return {kind: one | {"listeners": speakers[kind].figures()} for kind, one in figures.items()}


def main() -> None:
    options = read_arguments(
        __doc__, sizes=["0b6", "1b7"], kinds=["fp32", "bf16", "int8"], listeners=[1, 2, 4], seconds=420,
        threads=(0, "0: as many as the engine uses"), scratch=SCRATCH,
    )  # fmt: skip
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)  # for the processes that load
        torch.set_num_threads(options.threads)
    prepare_device(CPU)
    say = stopwatch()
    figures: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "instruction_sets": instruction_sets(),
        "load_average": os.getloadavg()[0],
    }
    figures["sizes"] = {}
    for size in options.sizes:
        figures["sizes"][size] = measure(options, size, say)
        path = save(options.out, "cpu", figures)
    print(cpu_tables(figures), path, sep="\n\n")


if __name__ == "__main__":
    main()
