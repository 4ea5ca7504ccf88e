"""Speaks real utterances in batches that grow to all slots, or as long as they run in real time.

Afterwards no request triggers a first call, and the tick cost of every batch size is known: admission would otherwise
admit a burst only step by step.
"""

from __future__ import annotations

import queue
from typing import Any

import numpy as np

from oscine.config import EngineConfig
from oscine.engine.in_process import InProcessEngine
from oscine.engine.policy import FRAME_S
from oscine.errors import ConfigError, EngineError, RequestError
from oscine.types import AudioChunk, ReportProgress, SpeechRequest

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
    """The smallest request that this kind of checkpoint accepts."""
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
    """Waits for the end of all utterances."""
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
