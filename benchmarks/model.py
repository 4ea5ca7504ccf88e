"""Measures the engine without a server: frames with the codec and codes only, and the first audio.

    python -m benchmarks.model [--model demo] [--rows 1 2 4 8]
    python -m benchmarks.model --size 1b7                          random weights of a published size, a GPU

The result is docs/results/bench-model-<size or model>.json.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.checkpoints import random_weights
from benchmarks.loaded_checkpoint import LoadedCheckpoint
from benchmarks.playback import BackgroundStreams, PlaybackClock, submit
from benchmarks.report_sections import model_cells, model_facts
from benchmarks.report_table import SIZES, table
from benchmarks.results import SCRATCH, read_arguments, save
from benchmarks.timing import time_ticks
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.config import EngineConfig, MemoryConfig, PacingConfig, RunawayConfig, TrimConfig
from oscine.engine.build import prepare_device
from oscine.engine.in_process import InProcessEngine
from oscine.errors import OverloadedError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.device import choose_device, choose_dtype, free_bytes
from oscine.model.speech_model import SpeechModel
from oscine.prompt.cloning import VoiceCloner
from oscine.request import SpeechRequest
from oscine.runner.backend import BackendOptions
from oscine.runner.factory import choose_backend, choose_kernels, make_backend
from oscine.runner.kv_cache import BLOCK_POSITIONS, blocks_for
from oscine.runner.memory_budget import MemoryBudget
from oscine.runner.slot_runner import SlotRunner
from oscine_bench.metrics import spread

TEXT = "Hello there, how are you today?"
_CLIP_S = 3.0
_WARM_FRAMES = 3  # untimed frames before the timed ones, at least
_WARM_PROBES = 2
# Length of a background stream, in frames: until all of them run, and for each probe.
_BACKGROUND_FRAMES, _FRAMES_PER_PROBE = 32, 10
_PROBE_TOKENS = 6  # a first chunk holds more than one frame where ticks are slow


@dataclass(frozen=True, slots=True)
class Setup:
    """What both modes (with the codec, codes only) share."""

    loaded: LoadedCheckpoint
    request: SpeechRequest  # as long as a slot allows
    prompt_rows: int
    budget: MemoryBudget
    options: argparse.Namespace

    @classmethod
    def of(cls, folder: Path, options: argparse.Namespace, device: torch.device) -> Setup:
        dtype = choose_dtype(options.dtype, device)
        loaded = LoadedCheckpoint.load(folder, device, dtype)
        request = _request(loaded.model)
        prompt_rows = loaded.builder.build(request).rows
        # Background streams must outlast the probes, or restarts would disturb them.
        background = prompt_rows + _BACKGROUND_FRAMES + _FRAMES_PER_PROBE * (_WARM_PROBES + options.probes)
        timed = max(options.context, prompt_rows + _WARM_FRAMES) + options.frames
        positions = max(timed, background) + 2
        budget = loaded.budget(
            max(options.rows), BLOCK_POSITIONS * blocks_for(positions), available_bytes=free_bytes(device),
            backend=choose_backend(device, dtype),
        )  # fmt: skip
        return cls(loaded, replace(request, max_new_tokens=positions - prompt_rows), prompt_rows, budget, options)


def _request(model: SpeechModel) -> SpeechRequest:
    """The same text for every kind of checkpoint, plus the fields that the kind requires."""
    kind, rate_hz = model.config.kind, model.config.codec.sample_rate_hz
    if kind == "voice_design":
        return SpeechRequest(text=TEXT, instructions="A calm voice.")
    if kind == "base":
        noise = np.random.default_rng(0).normal(0, 0.1, int(_CLIP_S * rate_hz)).astype(np.float32)
        return SpeechRequest(text=TEXT, voice=VoiceCloner(model).clone((noise, rate_hz), "A few words of reference."))
    return SpeechRequest(text=TEXT)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    device = choose_device(options.device)
    prepare_device(device)  # sets the number of threads that the engine uses
    begun_s = time.perf_counter()
    setup = Setup.of(folder, options, device)
    dtype = setup.loaded.model.talker.dtype
    figures: dict[str, Any] = {
        "kind": setup.loaded.model.config.kind,
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "kernels": choose_backend(device, dtype).name == "cuda",
        "threads": torch.get_num_threads(),
        "frames": options.frames,
        "context": options.context,
        "prompt_rows": setup.prompt_rows,
        "loaded_s": time.perf_counter() - begun_s,
        "budget": setup.budget.describe(),
    }
    for mode in ("with_codec", "codes_only"):
        with ThreadPoolExecutor(1) as thread:  # a new one: the backend may change torch's settings of its thread
            figures[mode] = thread.submit(_measure_mode, setup, mode).result()
        gc.collect()  # a runner and its graphs reference each other
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return figures


def _measure_mode(setup: Setup, mode: str) -> dict[str, Any]:
    begun_s = time.perf_counter()
    model, row_counts = setup.loaded.model, setup.options.rows
    options = BackendOptions(frame_sizes=tuple(row_counts), codec=mode != "codes_only")
    facts = (model.config, model.device, model.talker.dtype, options.sizes(setup.budget.slots))
    options = replace(options, kernels=choose_kernels("auto", *facts).kernels or "triton")
    backend = make_backend(model, setup.budget, options)
    runner = SlotRunner(backend)
    runner.capture()
    figures: dict[str, Any] = {"captured_s": time.perf_counter() - begun_s}
    rows = {}
    with backend.launching():
        for count in row_counts:
            rows[count] = _frames(setup, runner, count)
    parts = (setup.loaded.builder, setup.loaded.tokenizer, _engine_config(setup.budget))
    engine = InProcessEngine(runner, *parts, launching=backend.launching)
    try:
        for count in row_counts:
            first_ms = first_audio_ms(engine, setup.request, count - 1, setup.options.probes)
            rows[count]["first_audio_ms"] = None if first_ms is None else spread(first_ms)
            print(f"{mode}, {count} streams: {rows[count]}", flush=True)
    finally:
        engine.stop()
    figures["memory_bytes"] = runner.counts().memory_bytes
    if model.device.type == "cuda":  # no other process can use this memory
        figures["memory_reserved_bytes"] = torch.cuda.memory_reserved(model.device)
    return figures | {"rows": {str(count): row for count, row in rows.items()}}


def _frames(setup: Setup, runner: SlotRunner, count: int) -> dict[str, Any]:
    """Times `count` streams, all at the same position. End of speech is ignored: a frame costs the same either way."""
    frames = setup.options.frames
    before = max(_WARM_FRAMES, setup.options.context - (setup.prompt_rows - 1))  # the last row makes the first frame
    with setup.loaded.speaking(runner, range(count), lambda slot: replace(setup.request, seed=slot)) as slots:
        for _ in range(before - 1):
            runner.collect(runner.launch(slots))
        times = time_ticks(runner, slots, frames, setup.loaded.model.device)  # runs one more, untimed, first
    mean_ms = sum(times.wall_ms) / len(times.wall_ms)
    frame_ms = 1e3 / FRAME_RATE_HZ
    first = setup.prompt_rows - 1 + before
    return {
        "positions": [first, first + frames],
        "frame_ms": spread(times.wall_ms),
        "device_ms": spread(times.device_ms),
        "x_real_time_each": frame_ms / mean_ms,
        "x_real_time": count * frame_ms / mean_ms,
    }


def _engine_config(budget: MemoryBudget) -> EngineConfig:
    """The server's settings without the real-time reserve and without checks that random weights would trip."""
    return EngineConfig(
        slots=budget.slots,
        pacing=PacingConfig(real_time_share=1.0),
        memory=MemoryConfig(positions_per_slot=budget.positions_per_slot),
        trim_silence=TrimConfig(enabled=False),
        runaway=RunawayConfig(enabled=False),
    )


def first_audio_ms(engine: InProcessEngine, request: SpeechRequest, others: int, probes: int) -> Sequence[float] | None:
    """Times from submission to the first audio, for requests sent one by one while `others` streams run. None: the
    engine cannot sustain that many and refuses more."""
    times_ms: list[float] = []
    try:
        with BackgroundStreams(engine, request, others) as background:
            if not background.all_running():
                return None
            for number in range(_WARM_PROBES + probes):
                player = PlaybackClock(engine.sample_rate_hz)
                submit(engine, replace(request, seed=number, max_new_tokens=_PROBE_TOKENS), player.deliver)
                player.ended.wait()
                if player.first_audio_ms is None:
                    return None
                times_ms.append(player.first_audio_ms)
    except OverloadedError:
        return None
    return times_ms[_WARM_PROBES:]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    options = read_arguments(
        __doc__, words, model=("demo", "a folder, a hub id or demo"),
        rows={"nargs": "+", "type": int, "help": "streams at once; default: 1 8 32 64 128, on a CPU 1 2 4 8"},
        frames=(56, "of 80 ms, timed at each number of streams"),
        context=(64, "position of each stream when timing starts"),
        probes=(20, "requests that measure first audio, at each number of streams"), device="auto",
        dtype={"choices": ("auto", "float32", "bfloat16"), "default": "auto", "help": "auto: bfloat16 on a GPU"},
        size={"choices": SIZES, "help": "random weights of this size instead of a checkpoint"}, scratch=SCRATCH,
    )  # fmt: skip
    on_cpu = choose_device(options.device).type == "cpu"
    options.rows = sorted({*(options.rows or ([1, 2, 4, 8] if on_cpu else [1, 8, 32, 64, 128]))})
    return options


def main() -> None:
    options = arguments()
    random = options.size and random_weights(options.scratch, options.size, endless=False)
    figures = measure(random or find_checkpoint(options.model), options)
    print("times: p50 / p95 ms", table(*model_cells(figures)), *model_facts(figures), sep="\n")
    print(save(options.out, f"bench-model-{options.size or Path(options.model).name}", figures))


if __name__ == "__main__":
    main()
