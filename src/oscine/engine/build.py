"""Builds an engine from a checkpoint: plans memory, loads weights, captures graphs, warms up.

EngineClient takes `functools.partial(build_engine, model, config)`.
"""

from __future__ import annotations

import logging
import os
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from oscine.audio.pcm import Samples
from oscine.config import EngineConfig
from oscine.engine.in_process import InProcessEngine
from oscine.engine.policy import FRAME_S
from oscine.errors import ConfigError, EngineError, OutOfMemoryError, RequestError
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import ModelConfig, read_config
from oscine.model.device import (
    Device,
    Dtype,
    choose_device,
    choose_dtype,
    describe_device,
    free_bytes,
    missing_cuda_warning,
    total_bytes,
    usable_cpus,
)
from oscine.model.speech_model import SpeechModel
from oscine.model.weights import load_model, weight_bytes
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.cloning import VoiceCloner
from oscine.prompt.tokenizer import Tokenizer
from oscine.request import SpeechRequest
from oscine.runner.backend import BackendOptions, Quantization
from oscine.runner.cpu.expectation import expected_speed
from oscine.runner.factory import (
    KernelChoice,
    choose_backend,
    choose_kernels,
    choose_quantization,
    compiling_kernels,
    make_backend,
)
from oscine.runner.memory_budget import DoesNotFitError, MemoryBudget, plan_memory
from oscine.runner.slot_runner import SlotRunner
from oscine.types import AudioChunk, ReportProgress

_log = logging.getLogger(__name__)


def build_engine(
    model: str | os.PathLike[str],
    config: EngineConfig,
    progress: ReportProgress = lambda stage, done, total: None,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
    codec: bool = True,
) -> InProcessEngine:
    """Builds an engine that has spoken already. `model` is a folder, a hub id or "demo". Without `codec` the engine
    delivers codes, and every sample is 0. Raises CheckpointError or ConfigError before any weight is loaded."""
    try:
        chosen = choose_device(device)
        if device == "auto" and chosen.type == "cpu" and (warning := missing_cuda_warning()):
            progress(f"warning: {warning}", 1, 1)
        return _build(model, config, progress, chosen, dtype, codec=codec)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "out of memory" in str(error):  # a driver's error has no class of its own
            raise OutOfMemoryError(f"out of memory: {error}") from error
        raise EngineError(f"the engine could not be built: {error}") from error


def _build(
    model: str | os.PathLike[str],
    config: EngineConfig,
    progress: ReportProgress,
    device: torch.device,
    dtype: Dtype,
    *,
    codec: bool,
) -> InProcessEngine:
    prepare_device(device, codec=codec)
    weights_dtype = choose_dtype(dtype, device)
    folder = find_checkpoint(model)
    model_config = read_config(folder)
    quantize = choose_quantization(config.quantize, model_config, device, dtype)
    config = replace(config, quantize=quantize)
    budget = plan_within_memory(model_config, config, device, weights_dtype, progress)
    pacing = config.pacing
    if pacing.frames_per_text_id is None:
        pacing = replace(pacing, frames_per_text_id=model_config.frames_per_text_token)
    config = replace(config, slots=budget.slots, pacing=pacing)
    options = BackendOptions(frame_sizes=config.buckets, graphs=config.graphs, codec=codec)
    sizes = options.sizes(budget.slots)
    kernels = _choose_kernels(config, quantize, model_config, device, weights_dtype, sizes, progress)
    options = replace(options, kernels=kernels.kernels or "triton", quantize=quantize)
    if device.type == "cpu":
        _report_expected_speed(model_config, quantize, progress)
    _log.info("memory: %s", budget.describe())
    progress(f"memory: {budget.describe()}", 1, 1)

    def compiled(done: int, total: int) -> None:
        progress("kernels", done, total)

    def loaded(done: int, total: int) -> None:
        progress("weights", done, total)

    with _fewer_slots_advised(budget.slots):
        with compiling_kernels(model_config, budget, device, weights_dtype, options, compiled):
            int8 = quantize == "int8"
            speech_model = load_model(folder, device=device, dtype=weights_dtype, progress=loaded, int8=int8)
        backend = make_backend(speech_model, budget, options)
        runner = SlotRunner(backend)
        runner.capture(lambda done, total: progress("graphs", done, total))
    tokenizer = Tokenizer.from_folder(folder)
    builder = PromptBuilder(model_config, tokenizer)
    cloner = VoiceCloner(speech_model) if speech_model.speaker_encoder is not None else None
    quantized = {"none": "", "fp8": "FP8 weights", "int8": "INT8 weights"}[quantize]
    parts = (describe_device(device), str(weights_dtype).removeprefix("torch."), kernels.name, quantized)
    described = ", ".join(filter(None, parts))
    engine = InProcessEngine(
        *(runner, builder, tokenizer, config, cloner),
        presets=_preset_vectors(speech_model),
        device=described,
        launching=backend.launching,
    )
    try:
        with _fewer_slots_advised(budget.slots):
            warm_up(engine, config, progress)
    except BaseException:
        engine.stop()
        raise
    return engine


def _preset_vectors(model: SpeechModel) -> dict[str, Samples]:
    """Read now, so that no later request waits for the device."""
    rows = model.talker.code_embedding.weight.detach()
    return {name: rows[row].float().cpu().numpy() for name, row in model.config.talker.speakers.items()}


def _report_expected_speed(model_config: ModelConfig, quantize: Quantization, progress: ReportProgress) -> None:
    """Says before a large checkpoint is loaded how fast it will speak; warns if that is slower than its playback."""
    speed = expected_speed(model_config, int8=quantize == "int8")
    if speed is None:
        return
    text = f"about {speed:.2g} x real time is expected on this CPU for one listener"
    advice = "" if quantize == "int8" else "; --quantize int8 is several times faster"
    progress(text if speed >= 1 else f"warning: {text}{advice}", 1, 1)


@contextmanager
def _fewer_slots_advised(slots: int) -> Iterator[None]:
    """Turns torch's out-of-memory error into one that suggests fewer slots."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise OutOfMemoryError(f"out of memory; use fewer slots (now {slots}): {reason}") from error


def _choose_kernels(
    config: EngineConfig,
    quantize: Quantization,
    model_config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[int],
    progress: ReportProgress,
) -> KernelChoice:
    """Chooses the kernels and reports why; as a warning if the user could change the choice."""

    def compiled(done: int, total: int) -> None:
        progress(f"compiling {total} CUDA kernels", done, total)

    choice = choose_kernels(config.kernels, model_config, device, dtype, sizes, compiled, quantize)
    if choice.kernels:
        text = f"{choice.name}: {choice.reason}"
        _log.info("%s", text)
        progress(f"warning: {text}" if choice.warning else text, 1, 1)
    return choice


def prepare_device(device: torch.device, *, codec: bool = True) -> None:
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    # One core stays free for the server and its clients. Work split over all cores waits for the slowest one: when one
    # of two was busy, ticks took 200 ms instead of 50. With a codec, two cores are both used: one computes the codes,
    # the other the audio, and no work is split.
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        usable = usable_cpus()
        torch.set_num_threads(2 if codec and usable == 2 else max(1, usable - 1))


def plan_within_memory(
    model_config: ModelConfig, config: EngineConfig, device: torch.device, dtype: torch.dtype, progress: ReportProgress
) -> MemoryBudget:
    """Plans as many slots as fit, if the configuration leaves their number open. A plan that does not fit raises
    ConfigError, or OutOfMemoryError if it would fit without the memory that other processes hold."""
    weights = weight_bytes(model_config, dtype, int8=config.quantize == "int8")

    def plan(slots: int, memory_bytes: int | None) -> MemoryBudget:
        available = None if memory_bytes is None else max(0, memory_bytes - weights)
        return plan_slots(model_config, config, device, dtype, slots=slots, available_bytes=available)

    free = free_bytes(device)
    try:
        return plan(config.wanted_slots, free)
    except DoesNotFitError as error:
        if config.slots is not None or not error.fitting_slots:
            plan(config.slots or 1, total_bytes(device))
            raise OutOfMemoryError(f"{error}; other processes hold memory that would be enough") from None
        fewer = f"{error.fitting_slots} slots instead of {config.wanted_slots}"
        progress(f"warning: {fewer}: {error.sums}; for more, lower engine.memory.positions_per_slot", 1, 1)
        return plan(error.fitting_slots, free)


def plan_slots(
    model_config: ModelConfig,
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    *,
    slots: int,
    available_bytes: int | None = None,
) -> MemoryBudget:
    """Plans an engine's memory besides its weights. Raises ConfigError if it exceeds `available_bytes`."""
    memory = config.memory
    return plan_memory(
        model_config,
        slots=slots,
        positions_per_slot=min(memory.positions_per_slot, model_config.talker.max_positions),
        positions_total=memory.positions_total,
        element_bytes=dtype.itemsize,
        available_bytes=available_bytes,
        prefix_bytes=memory.prefix_cache_mib * 2**20,
        text_capacity=memory.text_ids_per_slot,
        backend=choose_backend(device, dtype),
    )


# --- Warm-up: speaks batches of every size until a tick is too slow for real time. Then the cost of a tick is known;
# otherwise admission would admit a burst only step by step.

_TEXT = "Hello."
_TOKENS = 17  # enough frames for all utterances of a batch to overlap, and for the cold first ticks to decay
_CLIP_S = 1.0


def warm_up(engine: InProcessEngine, config: EngineConfig, progress: ReportProgress) -> None:
    request = _request(engine)
    sizes = [min(size, config.wanted_slots) for size in config.buckets]
    for done, size in enumerate(sizes):
        progress("warm-up", done, len(sizes))
        try:
            _speak_batch(engine, request, size)
        except RequestError as error:
            raise ConfigError(f"these settings leave no room for one short utterance: {error}") from error
        # Not `status().tick_s`: the very first tick is cold and would end the warm-up on a slow machine.
        if engine.cost.tick_s(size) > config.pacing.real_time_share * FRAME_S:
            break
    progress("warm-up", len(sizes), len(sizes))


def _request(engine: InProcessEngine) -> SpeechRequest:
    """Returns the smallest request that this kind of checkpoint accepts."""
    fields: dict[str, Any] = {}
    if engine.model_config.kind == "base":
        rate_hz = engine.sample_rate_hz
        noise = np.random.default_rng(0).normal(0, 0.1, int(_CLIP_S * rate_hz)).astype(np.float32)
        fields["voice"] = engine.clone((noise, rate_hz), _TEXT)
    elif engine.model_config.kind == "voice_design":
        fields["instructions"] = "A calm voice."
    # Continuations are never refused for load: a cold first tick on a busy machine may last longer than a request may
    # wait for a slot.
    return SpeechRequest(text=_TEXT, max_new_tokens=_TOKENS, seed=0, trim_silence=False, continues_s=0.0, **fields)


def _speak_batch(engine: InProcessEngine, request: SpeechRequest, count: int) -> None:
    """Speaks a batch and waits until all its utterances have ended."""
    chunks: queue.SimpleQueue[AudioChunk] = queue.SimpleQueue()
    for number in range(count):
        engine.enqueue(f"warm-up {number}", request, chunks.put)
    speaking, pcm_bytes = count, 0
    while speaking:
        chunk = chunks.get()
        if chunk.error is not None:
            raise chunk.error
        speaking -= chunk.finish_reason is not None
        pcm_bytes += len(chunk.pcm)
    if not pcm_bytes:
        raise EngineError("the engine speaks, but its audio is empty")
