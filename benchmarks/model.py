"""Measures the engine without a server: frames with the codec and codes only, and the first audio.

python -m benchmarks.model [CHECKPOINT] [--rows 1,8,32] [--out docs/results/bench-model-demo.json]
python -m benchmarks.model --size 1b7 --out docs/results/bench-model-1b7.json      random weights of a published size
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
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
from benchmarks.results import SCRATCH, command_words, read_arguments
from benchmarks.timing import time_ticks
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.config import EngineConfig, MemoryConfig, PacingConfig, RunawayConfig, TrimConfig
from oscine.engine.build import prepare_device
from oscine.engine.in_process import InProcessEngine
from oscine.errors import ConfigError, OscineError, OverloadedError, RequestError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import ModelConfig, read_config
from oscine.model.device import Device, Dtype, choose_device, choose_dtype, free_bytes
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import weight_bytes
from oscine.prompt.cloning import VoiceCloner
from oscine.request import SpeechRequest
from oscine.runner.backend import Backend, BackendOptions
from oscine.runner.factory import choose_backend, choose_kernels, make_backend
from oscine.runner.kv_cache import BLOCK_POSITIONS, blocks_for
from oscine.runner.memory_budget import DoesNotFitError, MemoryBudget, plan_memory
from oscine.runner.slot_runner import SlotRunner
from oscine_bench.metrics import spread
from oscine_bench.record import check_writable, script_result, write_result

TEXT = "Hello there, how are you today?"
_CLIP_S = 3.0
_WARM_FRAMES = 3  # untimed frames before the timed ones, at least
_WARM_PROBES = 2
# Length of a background stream, in frames: until all of them run, and for each probe.
_BACKGROUND_FRAMES, _FRAMES_PER_PROBE = 32, 10
_PROBE_TOKENS = 6  # a first chunk holds more than one frame where ticks are slow

ProgressCallback = Callable[[str, int, int], None]  # stage, steps done, steps in all


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    rows: tuple[int, ...] = (1, 8, 32, 64, 128)  # streams at once
    frames: int = 56  # timed at each number of streams
    context: int = 64  # position of every stream when timing starts
    probes: int = 20  # requests that measure first audio, at each number of streams

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1:
            raise RequestError(f"rows must be numbers of streams, each at least 1; got {list(self.rows)}", "rows")
        for name in ("frames", "context", "probes"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, got {getattr(self, name)}", name)


@dataclass(frozen=True, slots=True)
class Setup:
    """What both modes (with the codec, codes only) share."""

    checkpoint: LoadedCheckpoint
    request: SpeechRequest  # as long as a slot allows
    prompt_rows: int
    budget: MemoryBudget

    @property
    def model(self) -> SpeechModel:
        return self.checkpoint.model

    @property
    def device(self) -> torch.device:
        return self.model.device


def measure(
    checkpoint: str | os.PathLike[str],
    plan: MeasurementPlan,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
    progress: ProgressCallback = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Raises CheckpointError, ConfigError or RequestError when the checkpoint or the plan cannot be measured."""
    try:
        place = choose_device(device)
        prepare_device(place)  # sets the number of threads that the engine uses
        begun_s = time.perf_counter()
        setup = _load(checkpoint, plan, place, dtype, progress)
        figures: dict[str, Any] = {
            "kind": setup.model.config.kind,
            "device": setup.device.type,
            "dtype": str(setup.model.talker.head.weight.dtype).removeprefix("torch."),
            "kernels": choose_backend(setup.device, setup.model.talker.dtype).name == "cuda",
            "threads": torch.get_num_threads(),
            "frames": plan.frames,
            "context": plan.context,
            "prompt_rows": setup.prompt_rows,
            "loaded_s": time.perf_counter() - begun_s,
            "budget": setup.budget.describe(),
        }
        for mode in ("with_codec", "codes_only"):
            with ThreadPoolExecutor(1) as thread:  # a new one: the backend may change torch's settings of its thread
                figures[mode] = thread.submit(_measure_mode, setup, plan, mode, progress).result()
            gc.collect()  # a runner and its graphs reference each other
            if setup.device.type == "cuda":
                torch.cuda.empty_cache()
        return figures
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"out of memory; use fewer rows (now {max(plan.rows)}): {reason}") from error


# --- loading ---


def _load(
    checkpoint: str | os.PathLike[str],
    plan: MeasurementPlan,
    device: torch.device,
    dtype: Dtype,
    progress: ProgressCallback,
) -> Setup:
    weights_dtype = choose_dtype(dtype, device)
    folder = find_checkpoint(checkpoint)
    config = read_config(folder)
    free = free_bytes(device)
    left = None if free is None else max(0, free - weight_bytes(config, weights_dtype))
    loaded = LoadedCheckpoint.load(folder, device, weights_dtype, lambda done, total: progress("weights", done, total))
    request = _request(loaded.model)
    prompt_rows = loaded.builder.build(request).rows
    positions = _positions(plan, prompt_rows)
    budget = _plan_memory(config, max(plan.rows), positions, weights_dtype, left, choose_backend(device, weights_dtype))
    request = replace(request, max_new_tokens=positions - prompt_rows)
    return Setup(loaded, request, prompt_rows, budget)


def _positions(plan: MeasurementPlan, prompt_rows: int) -> int:
    """Positions that one stream needs. Background streams must outlast the probes, or restarts would disturb them."""
    background = prompt_rows + _BACKGROUND_FRAMES + _FRAMES_PER_PROBE * (_WARM_PROBES + plan.probes)
    return max(plan.context + plan.frames, prompt_rows + _WARM_FRAMES + plan.frames, background) + 2


def _request(model: SpeechModel) -> SpeechRequest:
    """The same text for every kind of checkpoint, plus the fields that the kind requires."""
    kind, rate_hz = model.config.kind, model.config.codec.sample_rate_hz
    if kind == "voice_design":
        return SpeechRequest(text=TEXT, instructions="A calm voice.")
    if kind == "base":
        noise = np.random.default_rng(0).normal(0, 0.1, int(_CLIP_S * rate_hz)).astype(np.float32)
        return SpeechRequest(text=TEXT, voice=VoiceCloner(model).clone((noise, rate_hz), "A few words of reference."))
    return SpeechRequest(text=TEXT)


def _plan_memory(
    config: ModelConfig, slots: int, positions: int, dtype: torch.dtype, free: int | None, backend: type[Backend]
) -> MemoryBudget:
    per_slot = BLOCK_POSITIONS * blocks_for(positions)
    if per_slot > config.talker.max_positions:
        raise RequestError(
            f"prompt, context and frames need {positions} positions, the checkpoint has "
            f"{config.talker.max_positions}; use fewer frames or a smaller context",
            "frames",
        )
    return plan_memory(
        config,
        slots=slots,
        positions_per_slot=per_slot,
        positions_total=slots * per_slot,  # every stream can reach its full length
        element_bytes=dtype.itemsize,
        available_bytes=free,
        backend=backend,
    )


# --- one mode ---


def _measure_mode(setup: Setup, plan: MeasurementPlan, mode: str, progress: ProgressCallback) -> dict[str, Any]:
    named = mode.replace("_", " ")
    begun_s = time.perf_counter()
    options = BackendOptions(frame_sizes=plan.rows, codec=mode != "codes_only")
    facts = (setup.model.config, setup.device, setup.model.talker.dtype, options.sizes(setup.budget.slots))
    options = replace(options, kernels=choose_kernels("auto", *facts).kernels or "triton")
    backend = make_backend(setup.model, setup.budget, options)
    runner = SlotRunner(backend)
    runner.capture(lambda done, total: progress(f"graphs, {named}", done, total))
    figures: dict[str, Any] = {"captured_s": time.perf_counter() - begun_s}
    rows = {}
    with backend.launching():
        for done, count in enumerate(plan.rows):
            progress(f"frames, {named}", done, len(plan.rows))
            rows[count] = _frames(setup, plan, runner, count)
    parts = (setup.checkpoint.builder, setup.checkpoint.tokenizer, _engine_config(setup.budget))
    engine = InProcessEngine(runner, *parts, launching=backend.launching)
    try:
        for done, count in enumerate(plan.rows):
            progress(f"first audio, {named}", done, len(plan.rows))
            first_ms = first_audio_ms(engine, setup.request, count - 1, plan.probes)
            rows[count]["first_audio_ms"] = None if first_ms is None else spread(first_ms)
    finally:
        engine.stop()
    figures["memory_bytes"] = runner.counts().memory_bytes
    if setup.device.type == "cuda":  # no other process can use this memory
        figures["memory_reserved_bytes"] = torch.cuda.memory_reserved(setup.device)
    return figures | {"rows": {str(count): row for count, row in rows.items()}}


def _frames(setup: Setup, plan: MeasurementPlan, runner: SlotRunner, count: int) -> dict[str, Any]:
    """Times `count` streams, all at the same position. End of speech is ignored: a frame costs the same either way."""
    before = max(_WARM_FRAMES, plan.context - (setup.prompt_rows - 1))  # the last prompt row makes the first frame
    with setup.checkpoint.speaking(runner, range(count), lambda slot: replace(setup.request, seed=slot)) as slots:
        for _ in range(before - 1):
            runner.collect(runner.launch(slots))
        times = time_ticks(runner, slots, plan.frames, setup.device)  # runs one more, untimed, first
    mean_ms = sum(times.wall_ms) / len(times.wall_ms)
    frame_ms = 1e3 / FRAME_RATE_HZ
    first = setup.prompt_rows - 1 + before
    return {
        "positions": [first, first + plan.frames],
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


# --- the command ---


def bench_model(words: Sequence[str] | None = None) -> None:
    options = read_arguments(
        __doc__, words, positional=["model"],
        model={"nargs": "?", "default": "demo", "help": "a folder, a hub id or demo"},
        rows=(str, "numbers of streams, such as 1,8,32; default: 1,8,32,64,128; on a CPU 1,2,4,8"),
        frames=(56, "of 80 ms, timed at each number of streams"),
        context=(64, "position of each stream when timing starts"),
        probes=(20, "requests that measure first audio, at each number of streams"), device="auto",
        dtype={"choices": ("auto", "float32", "bfloat16"), "default": "auto", "help": "auto: bfloat16 on a GPU"},
        size={"choices": SIZES, "help": "random weights of this size instead of a checkpoint"}, scratch=SCRATCH,
        name=(str, "of this result in tables"), out=(Path, "JSON file for the result"),
    )  # fmt: skip
    if options.out is not None:
        check_writable(options.out)
    model, name = options.model, options.name
    if options.size is not None:
        model, name = str(random_weights(options.scratch, options.size, endless=False)), name or SIZES[options.size]
    default = "1,2,4,8" if choose_device(options.device).type == "cpu" else "1,8,32,64,128"
    plan = MeasurementPlan(_numbers(options.rows or default), options.frames, options.context, options.probes)

    def show(stage: str, done: int, total: int) -> None:
        print(f"{stage}: {done} of {total}", end="  \r", file=sys.stderr, flush=True)  # standard output is for results

    try:
        figures = measure(model, plan, device=options.device, dtype=options.dtype, progress=show)
    except DoesNotFitError as error:
        raise ConfigError(f"--rows {max(plan.rows)} does not fit: {error.sums}; use fewer rows") from error
    # The result names the checkpoint, not the folder that holds it on this machine.
    shown = [Path(word).name if word == model and Path(word).is_dir() else word for word in command_words()]
    result = script_result(name or Path(model).name, shown, figures, "torch")
    if options.out is not None:
        write_result(options.out, result)
    print(f"{result['name']} (times: p50 / p95 ms)", table(*model_cells(figures)), *model_facts(figures), sep="\n")


def _numbers(listed: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in listed.split(",") if word.strip()}))
    except ValueError:
        raise RequestError(f"--rows takes integers such as 1,8,32; got {listed!r}", "rows") from None


def main() -> None:
    try:
        bench_model()
    except OscineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, RequestError) else 1)


if __name__ == "__main__":
    main()
