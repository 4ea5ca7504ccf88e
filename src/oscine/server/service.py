"""What every route needs: the engine, what it speaks with, who may ask, and whether it is open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from oscine.config import ServerConfig
from oscine.narration import NarrationChunk, narrate
from oscine.segmenter import SegmenterConfig
from oscine.server.api_keys import Access
from oscine.server.errors import ApiError
from oscine.server.metrics import Metrics
from oscine.server.reference_clips import ClipPolicy, ClipVoices
from oscine.server.streaming_response import OffLoopEncoder
from oscine.server.voice_aliases import Voices, reserved_names
from oscine.server.voice_store import VoiceStore
from oscine.types import EngineHealth, ModelCard, SpeechEngine

if TYPE_CHECKING:
    from oscine.server.speech_plan import SpeechPlan

# A submit waits a millisecond for the engine's answer, an encoder computes for as long: few threads serve many streams.
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
        self.access = Access(config.api_keys, config.streams_per_key)
        folder = Path(config.voices_dir).expanduser() if config.voices_dir else None
        self.voices = Voices(card, VoiceStore(folder, reserved_names(card.speakers), config.max_voices))
        self.clip_policy = ClipPolicy(
            urls=config.ref_urls,
            files_below=Path(config.ref_files_below) if config.ref_files_below else None,
            max_bytes=config.max_clip_bytes,
        )
        self.clip_voices = ClipVoices(engine)
        self.submit_pool = ThreadPoolExecutor(_SUBMIT_THREADS, "oscine-submit")
        self.encode_pool = ThreadPoolExecutor(_ENCODE_THREADS, "oscine-encode")
        chars = config.segment_chars
        self.split = SegmenterConfig(first_chars=chars // 2, segment_chars=chars, max_chars=2 * chars)
        self.draining = False

    @property
    def streams(self) -> int:
        """Speeches that run: who drains waits for them."""
        return self.access.streams

    def narrate(self, plan: SpeechPlan) -> AsyncGenerator[NarrationChunk, None]:
        return narrate(self.engine, plan.request, plan.segments, plan.rate_hz, self.submit_pool, plan.speed)

    def encoder(self, plan: SpeechPlan) -> OffLoopEncoder:
        as_it_is = not plan.format.encoded and plan.speed == 1 and plan.out_rate_hz == plan.rate_hz
        return OffLoopEncoder(plan.encoder(), None if as_it_is else self.encode_pool)

    def close(self) -> None:
        self.clip_voices.close()
        self.submit_pool.shutdown(wait=False, cancel_futures=True)
        self.encode_pool.shutdown(wait=False, cancel_futures=True)

    def check_open(self) -> None:
        """Raises 503 with the state, and when to come again."""
        if self.draining:
            raise ApiError(503, "the server is about to stop and takes no new requests", retry_after_s=5.0)
        health = self.health()
        if health.state == "failed":
            raise ApiError(503, f"the engine has failed: {health.last_reason}", code="engine_failed", retry_after_s=30)
        if not self.engine.status().ready:
            raise ApiError(503, f"the engine is {health.state}; try again soon", retry_after_s=2.0)
