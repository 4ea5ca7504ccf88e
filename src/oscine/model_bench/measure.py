"""A checkpoint becomes figures: milliseconds of a frame for so many streams at once, and how soon one more is heard."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from oscine.bench.metrics import spread
from oscine.config import EngineConfig
from oscine.engine.build import prepare_device
from oscine.engine.in_process import InProcessEngine
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import ModelConfig, read_config
from oscine.model.device import Device, Dtype, choose_device, choose_dtype, free_bytes
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model, weight_bytes
from oscine.model_bench.listener import Company, Listener
from oscine.model_bench.ticks import time_ticks
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.cloning import VoiceCloner
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.block_allocator import PAGE_POSITIONS, pages_for
from oscine.runner.memory_budget import MemoryBudget, plan_memory
from oscine.runner.runner import SlotAssignment
from oscine.runner.slot_runner import SlotRunner, uses_kernels
from oscine.types import FRAME_RATE_HZ, ConfigError, OverloadedError, RequestError, SpeechRequest

TEXT = "Hello there, how are you today?"
_CLIP_S = 3.0
_WARM_FRAMES = 3  # at least so many before any that is timed
_WARM_PROBES = 2
_COMPANY_FRAMES = (32, 10)  # what a stream beside the probes has to say: to gather, and for each probe
_PROBE_TOKENS = 6  # a first chunk holds more than one frame where ticks are slow

Progress = Callable[[str, int, int], None]  # stage, steps done, steps in all


@dataclass(frozen=True, slots=True)
class Plan:
    rows: tuple[int, ...] = (1, 8, 32, 64, 128)  # streams at once
    frames: int = 56  # timed at each number of streams
    context: int = 64  # positions that every stream has behind it when timing begins
    probes: int = 20  # requests for a first audio, at each number of streams

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1:
            raise RequestError(f"rows are numbers of streams from 1 on, got {list(self.rows)}", "rows")
        for name in ("frames", "context", "probes"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name} must be at least 1, got {getattr(self, name)}", name)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What both ways to run have in common."""

    model: SpeechModel
    tokenizer: Tokenizer
    builder: PromptBuilder
    request: SpeechRequest  # for as many frames as a slot has room for
    prompt_rows: int
    budget: MemoryBudget

    @property
    def device(self) -> torch.device:
        return self.model.device


def measure(
    checkpoint: str | os.PathLike[str],
    plan: Plan,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
    progress: Progress = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Raises CheckpointError, ConfigError or RequestError for what cannot be measured."""
    try:
        return _measure(checkpoint, plan, choose_device(device), dtype, progress)
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the memory is not enough; ask for fewer rows (now {max(plan.rows)}): {reason}") from error


def _measure(
    checkpoint: str | os.PathLike[str], plan: Plan, device: torch.device, dtype: Dtype, progress: Progress
) -> dict[str, Any]:
    prepare_device(device)  # as many threads as the engine would take
    begun_s = time.perf_counter()
    loaded = _load(checkpoint, plan, device, dtype, progress)
    figures: dict[str, Any] = {
        "kind": loaded.model.config.kind,
        "device": loaded.device.type,
        "dtype": str(loaded.model.talker.head.weight.dtype).removeprefix("torch."),
        "kernels": uses_kernels(loaded.device, loaded.model.talker.head.weight.dtype),
        "threads": torch.get_num_threads(),
        "frames": plan.frames,
        "context": plan.context,
        "prompt_rows": loaded.prompt_rows,
        "loaded_s": time.perf_counter() - begun_s,
        "budget": loaded.budget.describe(),
    }
    for way in ("with_codec", "codes_only"):
        figures[way] = _measure_way(loaded, plan, way, progress)
        gc.collect()  # a runner and its graphs hold each other
        if loaded.device.type == "cuda":
            torch.cuda.empty_cache()
    return figures


# --- loading ---


def _load(
    checkpoint: str | os.PathLike[str], plan: Plan, device: torch.device, dtype: Dtype, progress: Progress
) -> Loaded:
    weights_dtype = choose_dtype(dtype, device)
    folder = find_checkpoint(checkpoint)
    config = read_config(folder)
    free = free_bytes(device)
    left = None if free is None else max(0, free - weight_bytes(config, weights_dtype))
    model = load_model(
        folder, device=device, dtype=weights_dtype, progress=lambda done, total: progress("weights", done, total)
    )
    tokenizer = Tokenizer.from_folder(folder)
    builder = PromptBuilder(config, tokenizer)
    request = _request(model)
    prompt_rows = builder.build(request).rows
    positions = _positions(plan, prompt_rows)
    budget = _plan_memory(config, max(plan.rows), positions, weights_dtype, left, uses_kernels(device, weights_dtype))
    request = replace(request, max_new_tokens=positions - prompt_rows)
    return Loaded(model, tokenizer, builder, request, prompt_rows, budget)


def _positions(plan: Plan, prompt_rows: int) -> int:
    """Of one stream: when frames are timed, and when it is company. Were that shorter, a crowd would end and begin anew
    while others are timed."""
    gather, each = _COMPANY_FRAMES
    company = prompt_rows + gather + each * (_WARM_PROBES + plan.probes)
    return max(plan.context + plan.frames, prompt_rows + _WARM_FRAMES + plan.frames, company) + 2


def _request(model: SpeechModel) -> SpeechRequest:
    """The same text for every kind of checkpoint, with the least that it must be given besides."""
    kind, rate_hz = model.config.kind, model.config.codec.sample_rate_hz
    if kind == "voice_design":
        return SpeechRequest(text=TEXT, instruct="A calm voice.")
    if kind == "base":
        noise = np.random.default_rng(0).normal(0, 0.1, int(_CLIP_S * rate_hz)).astype(np.float32)
        return SpeechRequest(text=TEXT, voice=VoiceCloner(model).clone((noise, rate_hz), "A few words of reference."))
    return SpeechRequest(text=TEXT)


def _plan_memory(
    config: ModelConfig, slots: int, positions: int, dtype: torch.dtype, free: int | None, kernels: bool
) -> MemoryBudget:
    per_slot = PAGE_POSITIONS * pages_for(positions)
    if per_slot > config.talker.max_positions:
        raise RequestError(
            f"prompt, context and frames need {positions} positions, the checkpoint has "
            f"{config.talker.max_positions}; ask for fewer frames or less context",
            "frames",
        )
    return plan_memory(
        config,
        slots=slots,
        positions_per_slot=per_slot,
        positions_total=slots * per_slot,  # all of them are to speak to the end
        element_bytes=dtype.itemsize,
        available_bytes=free,
        kernels=kernels,
    )


# --- one way to run ---


def _measure_way(loaded: Loaded, plan: Plan, way: str, progress: Progress) -> dict[str, Any]:
    named = way.replace("_", " ")
    begun_s = time.perf_counter()
    runner = SlotRunner(loaded.model, loaded.budget, frame_sizes=plan.rows, sounding=way != "codes_only")
    runner.capture(lambda done, total: progress(f"graphs, {named}", done, total))
    figures: dict[str, Any] = {"captured_s": time.perf_counter() - begun_s}
    rows = {}
    for done, count in enumerate(plan.rows):
        progress(f"frames, {named}", done, len(plan.rows))
        rows[count] = _frames(loaded, plan, runner, count)
    engine = InProcessEngine(runner, loaded.builder, loaded.tokenizer, _engine_config(loaded.budget))
    try:
        for done, count in enumerate(plan.rows):
            progress(f"first audio, {named}", done, len(plan.rows))
            first_ms = first_audio_ms(engine, loaded.request, count - 1, plan.probes)
            rows[count]["first_audio_ms"] = None if first_ms is None else spread(first_ms)
    finally:
        engine.stop()
    figures["memory_bytes"] = runner.counts().memory_bytes
    if loaded.device.type == "cuda":  # what nobody else on the device can have
        figures["memory_reserved_bytes"] = torch.cuda.memory_reserved(loaded.device)
    return figures | {"rows": {str(count): row for count, row in rows.items()}}


def _frames(loaded: Loaded, plan: Plan, runner: SlotRunner, count: int) -> dict[str, Any]:
    """`count` streams that all stand at the same place, frame after frame. Whether one of them would have ended its
    speech is not asked: the frame costs the same."""
    slots = range(count)
    for slot in slots:
        request = replace(loaded.request, seed=slot)
        sampling = request.sampling(loaded.builder.config.sampling)
        runner.admit(SlotAssignment(slot, loaded.builder.build(request), sampling))
    before = max(_WARM_FRAMES, plan.context - (loaded.prompt_rows - 1))  # the last prompt row is the first frame's
    for _ in range(before - 1):
        runner.collect(runner.launch(slots))
    times = time_ticks(runner, slots, plan.frames, loaded.device)  # one more, which is not timed, comes first
    for slot in slots:
        runner.release(slot)
    mean_ms = sum(times.wall_ms) / len(times.wall_ms)
    frame_ms = 1e3 / FRAME_RATE_HZ
    first = loaded.prompt_rows - 1 + before
    return {
        "positions": [first, first + plan.frames],
        "frame_ms": spread(times.wall_ms),
        "device_ms": spread(times.device_ms),
        "x_real_time_each": frame_ms / mean_ms,
        "x_real_time": count * frame_ms / mean_ms,
    }


def _engine_config(budget: MemoryBudget) -> EngineConfig:
    """As it serves, but for the last reserve of real time, and for what random weights and missing sound would trip."""
    return EngineConfig.from_mapping(
        {
            "slots": budget.slots,
            "pacing": {"real_time_share": 1.0},
            "memory": {"positions_per_slot": budget.positions_per_slot},
            "trim_silence": {"enabled": False},
            "guard": {"enabled": False},
        }
    )


def first_audio_ms(engine: InProcessEngine, request: SpeechRequest, others: int, probes: int) -> Sequence[float] | None:
    """From submission to the first sound, for requests that come one by one while `others` speak. None: the engine
    cannot keep so many in real time, and lets nobody more in."""
    times_ms: list[float] = []
    try:
        with Company(engine, request, others) as company:
            if not company.gathers():
                return None
            for number in range(_WARM_PROBES + probes):
                listener = Listener(engine.sample_rate_hz)
                engine.submit(replace(request, seed=number, max_new_tokens=_PROBE_TOKENS), listener.deliver)
                listener.ended.wait()
                if listener.first_audio_ms is None:
                    return None
                times_ms.append(listener.first_audio_ms)
    except OverloadedError:
        return None
    return times_ms[_WARM_PROBES:]
