"""A checkpoint and settings become an engine that has spoken: memory planned, weights loaded, graphs captured, warm.

`functools.partial(build_engine, model, config)` is what EngineClient takes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from oscine.config import EngineConfig
from oscine.engine.in_process import InProcessEngine
from oscine.engine.policy import FRAME_S
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import ModelConfig, read_config
from oscine.model.device import Device, Dtype, choose_device, choose_dtype, free_bytes
from oscine.model.weights import load_model, weight_bytes
from oscine.prompt.builder import PromptBuilder
from oscine.prompt.cloning import VoiceCloner
from oscine.prompt.tokenizer import Tokenizer
from oscine.runner.memory_budget import MemoryBudget, plan_memory
from oscine.runner.slot_runner import SlotRunner, uses_kernels
from oscine.types import (
    AudioChunk,
    ConfigError,
    EngineError,
    OverloadedError,
    RequestError,
    SpeechRequest,
)

if TYPE_CHECKING:
    from oscine.engine.remote.worker import ReportProgress

_log = logging.getLogger(__name__)

_WARM_TEXT = "Hello."
_WARM_TOKENS = 17  # of each utterance: enough frames for all of them to meet, and for the first, cold ticks to fade
_WARM_CLIP_S = 1.0


def build_engine(
    model: str | os.PathLike[str],
    config: EngineConfig,
    progress: ReportProgress = lambda stage, done, total: None,
    *,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> InProcessEngine:
    """`model` is a folder, a hub id or "demo". What cannot work raises before a weight is loaded: CheckpointError,
    ConfigError. The engine is returned when it has made sound; until then it reports how far it is."""
    try:
        return _build(model, config, progress, choose_device(device), dtype)
    except torch.OutOfMemoryError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the memory is not enough; use fewer slots (now {config.slots}): {reason}") from error
    except (RuntimeError, MemoryError) as error:
        raise EngineError(f"the engine could not be built: {error}") from error


def _build(
    model: str | os.PathLike[str], config: EngineConfig, progress: ReportProgress, device: torch.device, dtype: Dtype
) -> InProcessEngine:
    prepare_device(device)
    weights_dtype = choose_dtype(dtype, device)
    folder = find_checkpoint(model)
    model_config = read_config(folder)
    budget = _plan(model_config, config, device, weights_dtype)
    _log.info("memory: %s", budget.describe())
    progress(f"memory: {budget.describe()}", 1, 1)
    speech_model = load_model(
        folder, device=device, dtype=weights_dtype, progress=lambda done, total: progress("weights", done, total)
    )
    runner = SlotRunner(speech_model, budget, frame_sizes=config.buckets, graphs=config.graphs)
    runner.capture(lambda done, total: progress("graphs", done, total))
    tokenizer = Tokenizer.from_folder(folder)
    builder = PromptBuilder(model_config, tokenizer)
    cloner = VoiceCloner(speech_model) if speech_model.speaker_encoder is not None else None
    engine = InProcessEngine(runner, builder, tokenizer, config, cloner)
    try:
        _warm_up(engine, model_config, config, progress)
    except BaseException:
        engine.stop()
        raise
    return engine


def prepare_device(device: torch.device) -> None:
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    # One core is left to the server and its listeners: work that is cut up for every core waits for the slowest part,
    # and ticks took four times as long (200 ms for 50) when one of two cores was not free.
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        torch.set_num_threads(max(1, (usable or 1) - 1))


def _plan(model_config: ModelConfig, config: EngineConfig, device: torch.device, dtype: torch.dtype) -> MemoryBudget:
    memory = config.memory
    free = free_bytes(device)
    return plan_memory(
        model_config,
        slots=config.slots,
        positions_per_slot=min(memory.positions_per_slot, model_config.talker.max_positions),
        positions_total=memory.positions_total,
        element_bytes=dtype.itemsize,
        available_bytes=None if free is None else max(0, free - weight_bytes(model_config, dtype)),
        prefix_bytes=memory.prefix_cache_mib * 2**20,
        text_capacity=memory.text_ids_per_slot,
        kernels=uses_kernels(device, dtype),
    )


# --- warm-up --------------------------------------------------------------------------------------------------------


def _warm_up(
    engine: InProcessEngine, model_config: ModelConfig, config: EngineConfig, progress: ReportProgress
) -> None:
    """Real utterances, in batches that grow to all slots, or to where real time ends. So nobody meets a first call,
    and the meter knows what a batch costs: before, the door would let a burst in by and by only."""
    request = _warm_request(engine, model_config)
    sizes = [min(size, config.slots) for size in config.buckets]
    for done, size in enumerate(sizes):
        progress("warm-up", done, len(sizes))
        try:
            all_at_once = _speak_together(engine, request, size)
        except RequestError as error:
            raise ConfigError(f"these settings have no room for a single short utterance: {error}") from error
        # Not `status().tick_s`: the first tick of all is cold, and would end this right away on a slow machine.
        if not all_at_once or engine.cost.tick_s(size) > config.pacing.real_time_share * FRAME_S:
            break
    progress("warm-up", len(sizes), len(sizes))


def _warm_request(engine: InProcessEngine, model_config: ModelConfig) -> SpeechRequest:
    """The least that this kind of checkpoint must be given."""
    fields: dict[str, Any] = {}
    if model_config.kind == "base":
        rate_hz = engine.sample_rate_hz
        noise = np.random.default_rng(0).normal(0, 0.1, int(_WARM_CLIP_S * rate_hz)).astype(np.float32)
        fields["voice"] = engine.clone((noise, rate_hz), _WARM_TEXT)
    elif model_config.kind == "voice_design":
        fields["instruct"] = "A calm voice."
    return SpeechRequest(text=_WARM_TEXT, max_new_tokens=_WARM_TOKENS, seed=0, **fields)


def _speak_together(engine: InProcessEngine, request: SpeechRequest, count: int) -> bool:
    """Waits until all have ended. False: the engine would not take so many."""
    chunks: queue.SimpleQueue[AudioChunk] = queue.SimpleQueue()
    speaking = 0
    with contextlib.suppress(OverloadedError):
        for _ in range(count):
            engine.submit(request, chunks.put)
            speaking += 1
    all_at_once, pcm_bytes = speaking == count, 0
    while speaking:
        chunk = chunks.get()
        if chunk.error is not None:
            raise chunk.error
        speaking -= chunk.finish_reason is not None
        pcm_bytes += len(chunk.pcm)
    if not pcm_bytes:
        raise EngineError("the engine speaks, but makes no sound")
    return all_at_once
