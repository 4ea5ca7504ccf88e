"""Shared state of all routes: engine, voices, API keys, metrics, thread pools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oscine.config import ServerConfig
from oscine.encoding.encoders import AsyncEncoder, open_encoder
from oscine.narration import NarrationChunk, narrate
from oscine.server.api_keys import ApiKeys
from oscine.server.errors import ApiError
from oscine.server.metrics import Metrics
from oscine.server.reference_clips import ClipPolicy, ClonedVoices
from oscine.server.speech_plan import SpeechPlan, SpeechPlanner
from oscine.server.voice_aliases import VoiceResolver, reserved_names
from oscine.server.voice_store import VoiceStore
from oscine.types import EngineHealth, ModelCard, SpeechEngine

# A submit waits about a millisecond for the engine and an encoder call takes as long: few threads serve many streams.
_SUBMIT_THREADS = 16
_ENCODE_THREADS = 4


class Service:
    def __init__(
        self,
        engine: SpeechEngine,
        card: ModelCard,
        config: ServerConfig,
        health: Callable[[], EngineHealth] | None = None,
    ) -> None:
        self.engine, self.card, self.config = engine, card, config
        self.health = health or (lambda: EngineHealth("ready" if engine.status().ready else "starting"))
        self.metrics = Metrics(engine, self.health)
        self.api_keys = ApiKeys(config.api_keys, config.streams_per_key)
        folder = Path(config.voices_dir).expanduser() if config.voices_dir else None
        self.voices = VoiceResolver(card, VoiceStore(folder, reserved_names(card.speakers), config.max_voices))
        self.clip_policy = ClipPolicy(
            urls=config.ref_urls,
            files_below=Path(config.ref_files_below) if config.ref_files_below else None,
            max_bytes=config.max_clip_bytes,
        )
        self.cloned_voices = ClonedVoices(engine)
        self.planner = SpeechPlanner(card, config, self.voices, self.clip_policy, self.cloned_voices)
        self.submit_pool = ThreadPoolExecutor(_SUBMIT_THREADS, "oscine-submit")
        self.encode_pool = ThreadPoolExecutor(_ENCODE_THREADS, "oscine-encode")
        self.draining = False

    @property
    def streams(self) -> int:
        """Running streams; draining waits for them."""
        return self.api_keys.streams

    @property
    def full(self) -> bool:
        """Whether the engine has no room for another stream."""
        status = self.engine.status()
        return status.queued > 0 or status.slots_active >= min(status.slots, status.real_time_streams or status.slots)

    def narrate(self, plan: SpeechPlan) -> AsyncGenerator[NarrationChunk, None]:
        return narrate(self.engine, plan.request, plan.segments, plan.rate_hz, self.submit_pool, plan.speed)

    def encoder(self, plan: SpeechPlan) -> AsyncEncoder:
        pool = self.encode_pool if plan.is_converted else None
        return AsyncEncoder(open_encoder(plan.format.name, **plan.encoding), pool)

    def close(self) -> None:
        self.cloned_voices.close()
        self.submit_pool.shutdown(wait=False, cancel_futures=True)
        self.encode_pool.shutdown(wait=False, cancel_futures=True)

    def check_ready(self) -> None:
        """Raises 503 with the engine's state and when to retry."""
        if self.draining:
            raise ApiError(503, "the server is shutting down and takes no new requests", retry_after_s=5.0)
        health = self.health()
        if health.state == "failed":
            raise ApiError(503, f"the engine has failed: {health.last_reason}", code="engine_failed", retry_after_s=30)
        if not self.engine.status().ready:
            raise ApiError(503, f"the engine is {health.state}; retry in 2 s", retry_after_s=2.0)
