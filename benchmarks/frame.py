"""Milliseconds of a frame on random weights of the published sizes: talker, predictor, codec, the whole tick; first
audio from submission; start-up time and memory.

    python -m benchmarks.frame --out docs/results [--sizes 1b7 0b6] [--rows 1 8 32 64 128] [--context 64]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.results import save
from benchmarks.ticks import time_ticks
from oscine import Oscine, SpeechRequest
from oscine.runner.cuda.graphs import GraphSet
from oscine.runner.memory_budget import plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner
from random_checkpoint import write_checkpoint

GIB = 2**30
TEXT = "The quick brown fox jumps over the lazy dog, and then it rests for a while in the shade of a tree."


def median_ms(replay: Callable[[], None], repeats: int = 30) -> float:
    """Between device events, after a warm-up."""
    for _ in range(3):
        replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """bytes/s of a large device-to-device copy, read plus written."""
    a = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * 2**31 / (median_ms(lambda: b.copy_(a), 10) / 1e3)


def admit(tts: Oscine, runner: SlotRunner, slot: int, seed: int) -> None:
    request = SpeechRequest(text=TEXT, voice="ryan", language="english", seed=seed, max_new_tokens=400)
    runner.admit(SlotAssignment(slot, tts._builder.build(request), request.sampling(tts.config.sampling)))


def part_times(runner: SlotRunner, slots: Sequence[int]) -> dict[str, float]:
    """Each part in a graph of its own, on the slots' present state."""
    frame: Any = runner._frame
    chain, codec, rows = frame._chain, frame._codec, len(slots)
    index = torch.tensor(slots, device="cuda")
    codes = torch.zeros(rows, 16, dtype=torch.int64, device="cuda")
    pcm = torch.zeros(rows, runner.samples_per_frame, dtype=torch.int16, device="cuda")
    parts: dict[str, Callable[[int], None]] = {
        "talker": lambda size: chain._talker_step(index),
        "predictor": lambda size: chain._rest_codes(index, codes),
        "codec": lambda size: codec.run(codes, index, pcm),
    }
    times = {}
    for name, run in parts.items():
        graphs = GraphSet(run, [rows], captured=True)
        with torch.inference_mode():
            graphs.capture(lambda done, total: None)
        times[f"{name}_ms"] = median_ms(lambda graphs=graphs: graphs.replay(rows))  # type: ignore[misc]
    return times


def ticks_ms(runner: SlotRunner, slots: Sequence[int], ticks: int = 40) -> tuple[float, float]:
    """Wall time per tick with two in flight, as the engine runs them; and what the device needs for one of them."""
    times = time_ticks(runner, slots, ticks, torch.device("cuda"))
    return statistics.fmean(times.wall_ms), statistics.median(times.device_ms)


def kernel_table(runner: SlotRunner, slots: Sequence[int]) -> list[dict[str, Any]]:
    """Where a tick's device time goes, kernel by kernel: the launches of one tick without a graph."""
    frame: Any = runner._frame
    with torch.inference_mode(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        frame._slots[: len(slots)] = torch.tensor(slots, device="cuda")
        frame._run(len(slots))
        torch.cuda.synchronize()
    rows = [
        {"kernel": row.key, "launches": row.count, "total_us": row.self_device_time_total}
        for row in profile.key_averages()
    ]
    return sorted(rows, key=lambda row: -row["total_us"])[:16]


def first_audio_ms(tts: Oscine, runner: SlotRunner, busy: int) -> dict[str, float]:
    """From the request to its first frame's samples on the host, with `busy` other streams in the same tick."""
    others = list(range(1, busy + 1))
    steps: dict[str, list[float]] = {"prompt": [], "admit_host": [], "admit_device": [], "tick": [], "total": []}
    for seed in range(24):
        torch.cuda.synchronize()
        stamps = [time.perf_counter()]
        request = SpeechRequest(text=TEXT, voice="ryan", language="english", seed=seed, max_new_tokens=400)
        prompt, sampling = tts._builder.build(request), request.sampling(tts.config.sampling)
        stamps.append(time.perf_counter())
        runner.admit(SlotAssignment(0, prompt, sampling))
        stamps.append(time.perf_counter())
        if seed % 2:  # every second time without this wait, for the total
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


def alone_and_in_company(tts: Oscine, runner: SlotRunner, company: int, frames: int = 24) -> int:
    """Frames in which a request says the same alone as among `company`, until the first difference."""

    def codes(slots: Sequence[int]) -> list[list[int]]:
        for slot in slots:
            admit(tts, runner, slot, slot)
        said = [runner.collect(runner.launch(slots)).codes[0].tolist() for _ in range(frames)]
        for slot in slots:
            runner.release(slot)
        return said

    same = [a == b for a, b in zip(codes([0]), codes(range(company)), strict=True)]
    return same.index(False) if False in same else frames


def measure(folder: Path, slots: int, rows: Sequence[int], context: int, bandwidth: float) -> dict[str, Any]:
    begun = time.perf_counter()
    tts = Oscine(folder, device="cuda", dtype="bfloat16")
    torch.cuda.synchronize()
    loaded_s = time.perf_counter() - begun
    model = tts._model
    budget = plan_memory(
        model.config,
        slots=slots,
        positions_per_slot=1024,
        positions_total=None,
        element_bytes=2,
        available_bytes=None,
        kernels=True,
    )
    begun = time.perf_counter()
    runner = SlotRunner(model, budget, frame_sizes=rows)
    runner.capture()
    torch.cuda.synchronize()
    figures: dict[str, Any] = {
        "loaded_s": loaded_s,
        "captured_s": time.perf_counter() - begun,
        "budget": budget.describe(),
        "memory_gib": torch.cuda.memory_reserved() / GIB,
        "frames": {},
    }
    ar_bytes = sum(p.nbytes for p in model.talker.stack.parameters()) + model.talker.head.weight.nbytes
    ar_bytes += 15 * sum(p.nbytes for p in model.predictor.stack.parameters()) + model.predictor.heads.nbytes
    for count in rows:
        for slot in range(count):
            admit(tts, runner, slot, slot)
        held = list(range(count))
        while runner._held[0].position < context:
            runner.collect(runner.launch(held))
        # Both over the same positions: the context grows with every frame.
        first = runner._held[0].position
        wall_ms, device_ms = ticks_ms(runner, held)
        figure_positions = [first, runner._held[0].position]
        figure: dict[str, Any] = {"tick_ms": wall_ms, "tick_device_ms": device_ms, **part_times(runner, held)}
        figure["positions"] = figure_positions
        figure["idle_ms"] = wall_ms - device_ms
        ar_ms = figure["talker_ms"] + figure["predictor_ms"]
        figure["share_of_copy_bandwidth"] = ar_bytes / (ar_ms / 1e3) / bandwidth
        figure["x_real_time"] = count * 80 / wall_ms
        figures["frames"][str(count)] = figure
        print(count, {n: round(v, 3) for n, v in figure.items() if isinstance(v, float)}, figure_positions, flush=True)
        if count in (1, 32):
            figure["kernels"] = kernel_table(runner, held)
            for row in figure["kernels"]:
                print(f"   {row['kernel'][:40]:40} {row['launches']:5} launches {row['total_us']:9.1f} us", flush=True)
        for slot in held:
            runner.release(slot)
    figures["frames_alone_as_in_company_of_24"] = {
        str(company): alone_and_in_company(tts, runner, company)
        for company in (2, 8, 16, 32, 64, 128)
        if company <= slots
    }
    print(
        "frames of 24 that are the same alone as in company:", figures["frames_alone_as_in_company_of_24"], flush=True
    )
    for busy in (0, 7, 31):
        if busy + 1 <= slots:
            for slot in range(1, busy + 1):
                admit(tts, runner, slot, slot)
            figures[f"first_audio_ms_beside_{busy}"] = first_audio_ms(tts, runner, busy)
            print("first audio beside", busy, figures[f"first_audio_ms_beside_{busy}"], flush=True)
            for slot in range(1, busy + 1):
                runner.release(slot)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--scratch", type=Path, default=Path(".cache/gpu"))
    parser.add_argument("--sizes", nargs="+", default=["1b7", "0b6"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 32, 64, 128])
    parser.add_argument("--context", type=int, default=64)
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    figures: dict[str, Any] = {"copy_bandwidth_tb_s": bandwidth / 1e12, "context_positions": options.context}
    for size in options.sizes:
        gc.collect()  # a runner and its graphs hold each other
        torch.cuda.empty_cache()
        folder = options.scratch / f"full-{size}"
        if not (folder / "config.json").exists():
            write_checkpoint(folder, size=size, kind="custom_voice", widths="published")
        figures[size] = measure(folder, max(options.rows), options.rows, options.context, bandwidth)
        print(save(options.out, "frame", figures))


if __name__ == "__main__":
    main()
