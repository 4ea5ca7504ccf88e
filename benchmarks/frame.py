"""Times one frame on a GPU with random weights of the published sizes: talker, predictor, codec, the whole tick; first
audio; startup time and memory. With several kinds of kernels, each is measured on the same checkpoint.

    python -m benchmarks.frame --out docs/results [--sizes 1b7 0b6] [--rows 1 8 32 64 128 256] [--context 64]
        [--kernels cuda fp8 triton]

The result is docs/results/frame.json, or frame-0b6.json if 1.7B is not measured.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoints import random_weights
from benchmarks.cuda_frame import predict
from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.results import SCRATCH, read_arguments, save
from benchmarks.timing import copy_bandwidth, median_ms, time_ticks
from oscine.model.speech_model import SpeechModel
from oscine.request import SpeechRequest
from oscine.runner.backend import BackendOptions
from oscine.runner.cuda.backend import CudaBackend
from oscine.runner.cuda.graphs import GraphSet
from oscine.runner.slot_runner import SlotRunner

GIB = 2**30
KINDS = {  # of kernels
    "triton": BackendOptions(kernels="triton"),
    "cuda": BackendOptions(kernels="cuda"),
    "fp8": BackendOptions(kernels="cuda", quantize="fp8"),
}
_TICKS = 40
TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree."


def request(seed: int) -> SpeechRequest:
    return SpeechRequest(text=TEXT, voice="ryan", language="english", seed=seed, max_new_tokens=400)


def part_times(runner: SlotRunner, slots: Sequence[int]) -> dict[str, float]:
    """Times each part in its own graph, on the slots' current state."""
    backend: Any = runner.backend
    step, codec, rows = backend.step, backend.codec, len(slots)
    index = torch.tensor(slots, device="cuda")
    codec_slots = index.int()
    codes = torch.zeros(rows, 16, dtype=torch.int64, device="cuda")
    pcm = torch.zeros(rows, runner.samples_per_frame, dtype=torch.int16, device="cuda")
    failed = torch.zeros(rows, dtype=torch.int16, device="cuda")
    parts: dict[str, Callable[[int], None]] = {
        "talker": lambda size: step.talker_step(index),
        "predictor": lambda size: predict(step, index, codes, failed),
        "codec": lambda size: codec.run(codes, codec_slots, pcm),
    }
    times = {}
    for name, run in parts.items():
        graphs = GraphSet(run, [rows], captured=True)
        with torch.inference_mode():
            graphs.capture(lambda done, total: None)
        times[f"{name}_ms"] = median_ms(lambda graphs=graphs: graphs.replay(rows))  # type: ignore[misc]
    return times


def kernel_table(runner: SlotRunner, slots: Sequence[int]) -> list[dict[str, Any]]:
    """Device time of one tick by kernel, launched without a graph."""
    backend: Any = runner.backend
    with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        backend.run_eagerly(slots)
        torch.cuda.synchronize()
    rows = [
        {"kernel": row.key, "launches": row.count, "total_us": row.self_device_time_total}
        for row in profile.key_averages()
    ]
    return sorted(rows, key=lambda row: -row["total_us"])[:16]


def first_audio_ms(loaded: LoadedCheckpoint, runner: SlotRunner, busy: int) -> dict[str, float]:
    """Times from the request to the samples of its first frame on the host, with `busy` other streams in the same
    tick."""
    others = list(range(1, busy + 1))
    steps: dict[str, list[float]] = {"prompt": [], "admit_host": [], "admit_device": [], "tick": [], "total": []}
    for seed in range(24):
        torch.cuda.synchronize()
        stamps = [time.perf_counter()]
        assignment = loaded.assign(0, request(seed))
        stamps.append(time.perf_counter())
        runner.admit(assignment)
        stamps.append(time.perf_counter())
        if seed % 2:  # only every second time: the total is measured without this wait
            torch.cuda.synchronize()
        stamps.append(time.perf_counter())
        runner.collect(runner.launch([0, *others]))
        stamps.append(time.perf_counter())
        runner.release(0)
        if seed >= 4:
            spans = [(after - before) * 1e3 for before, after in pairwise(stamps)]
            if seed % 2:
                for name, span in zip(steps, spans, strict=False):
                    steps[name].append(span)
            else:
                steps["total"].append(sum(spans))
    figures = {f"{name}_ms": statistics.median(values) for name, values in steps.items()}
    return figures | {"total_worst_ms": max(steps["total"])}


def equal_frames_in_batch(loaded: LoadedCheckpoint, runner: SlotRunner, streams: int, frames: int = 24) -> int:
    """Leading frames in which a request has the same codes alone and in a batch of `streams`."""

    def codes(slots: Sequence[int]) -> list[list[int]]:
        with loaded.speaking(runner, slots, request) as held:
            return [runner.collect(runner.launch(held)).codes[0].tolist() for _ in range(frames)]

    same = [a == b for a, b in zip(codes([0]), codes(range(streams)), strict=True)]
    return same.index(False) if False in same else frames


def weight_bytes(model: SpeechModel, quantize: str) -> int:
    """What a frame reads of the weights at least: the talker once, the predictor 15 times."""

    def of_stack(stack: torch.nn.Module) -> int:
        # FP8: a byte per weight of a matrix; scales and norms are small.
        return sum(p.numel() if quantize == "fp8" and p.ndim == 2 else p.nbytes for p in stack.parameters())

    talker, predictor = model.talker, model.predictor
    heads = talker.head.weight.nbytes + predictor.heads.nbytes
    return of_stack(talker.stack) + 15 * of_stack(predictor.stack) + heads


def measure(
    folder: Path, slots: int, rows: Sequence[int], context: int, bandwidth: float, options: BackendOptions
) -> dict[str, Any]:
    begun = time.perf_counter()
    loaded = LoadedCheckpoint.load(folder, torch.device("cuda"), torch.bfloat16)
    torch.cuda.synchronize()
    loaded_s = time.perf_counter() - begun
    model = loaded.model
    budget = loaded.budget(slots, 1024, positions_total=None, backend=CudaBackend)
    ar_bytes = weight_bytes(model, options.quantize)
    begun = time.perf_counter()
    runner = SlotRunner(CudaBackend(model, budget, replace(options, frame_sizes=tuple(rows))))
    runner.capture()
    torch.cuda.synchronize()
    figures: dict[str, Any] = {
        "loaded_s": loaded_s,
        "captured_s": time.perf_counter() - begun,
        "budget": budget.describe(),
        "memory_gib": torch.cuda.memory_reserved() / GIB,
        "allocated_gib": torch.cuda.memory_allocated() / GIB,
        "frames": {},
    }
    for count in rows:
        with loaded.speaking(runner, range(count), request) as held:
            while runner.position(0) < context:
                runner.collect(runner.launch(held))
            # Both times cover the same positions: the context grows with every frame.
            first = runner.position(0)
            times = time_ticks(runner, held, _TICKS, torch.device("cuda"))
            wall_ms, device_ms = statistics.fmean(times.wall_ms), statistics.median(times.device_ms)
            positions = [first, runner.position(0)]
            figure: dict[str, Any] = {"tick_ms": wall_ms, "tick_device_ms": device_ms, **part_times(runner, held)}
            figure |= {"positions": positions, "idle_ms": wall_ms - device_ms}
            ar_ms = figure["talker_ms"] + figure["predictor_ms"]
            figure["share_of_copy_bandwidth"] = ar_bytes / (ar_ms / 1e3) / bandwidth
            figure["x_real_time"] = count * 80 / wall_ms
            figures["frames"][str(count)] = figure
            print(count, {n: round(v, 3) for n, v in figure.items() if isinstance(v, float)}, positions, flush=True)
            if count in (1, 32, 128):
                figure["kernels"] = kernel_table(runner, held)
                for row in figure["kernels"]:
                    shown = f"{row['kernel'][:40]:40} {row['launches']:5} launches {row['total_us']:9.1f} us"
                    print(f"   {shown}", flush=True)
    equal = {
        str(streams): equal_frames_in_batch(loaded, runner, streams)
        for streams in (2, 8, 16, 32, 64, 128, 256)
        if streams <= slots
    }
    figures["frames_alone_as_in_company_of_24"] = equal
    print("leading frames of 24 that are equal alone and in a batch:", equal, flush=True)
    for busy in (0, 7, 31):
        if busy + 1 <= slots:
            with loaded.speaking(runner, range(1, busy + 1), request):
                figures[f"first_audio_ms_beside_{busy}"] = first_audio_ms(loaded, runner, busy)
            print("first audio with other streams:", busy, figures[f"first_audio_ms_beside_{busy}"], flush=True)
    return figures


def result_name(sizes: Sequence[str]) -> str:
    """So that a run of 0.6B alone does not replace the figures of 1.7B."""
    return "frame" if "1b7" in sizes else f"frame-{'-'.join(sizes)}"


def main() -> None:
    options = read_arguments(
        __doc__, scratch=SCRATCH, sizes=["1b7", "0b6"], rows=[1, 8, 32, 64, 128], context=64,
        kernels={"nargs": "+", "choices": list(KINDS), "default": ["cuda", "fp8", "triton"]},
    )  # fmt: skip
    bandwidth = copy_bandwidth()
    figures: dict[str, Any] = {"copy_bandwidth_tb_s": bandwidth / 1e12, "context_positions": options.context}
    for size in options.sizes:
        folder = random_weights(options.scratch, size, endless=False)
        figures[size] = {}
        for kernels in options.kernels:
            gc.collect()  # a runner and its graphs reference each other
            torch.cuda.empty_cache()
            print(f"--- {size}, {kernels} kernels", flush=True)
            words = (folder, max(options.rows), options.rows, options.context, bandwidth, KINDS[kernels])
            figures[size][kernels] = measure(*words)
            print(save(options.out, result_name(options.sizes), figures))


if __name__ == "__main__":
    main()
