"""Prometheus metrics: requests are counted here, the engine's figures are read at each scrape."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from oscine.levels import first_audible
from oscine.types import TICK_BOUNDS_S, EngineHealth, FinishReason, SpeechEngine

_TTFA_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10)
_E2E_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_MODES = {"/v1/audio/speech": "http", "/v1/audio/speech/batch": "batch"}  # of requests that no handler has counted
_AUDIBLE_DBFS = -50.0


class Metrics:
    def __init__(self, engine: SpeechEngine, health: Callable[[], EngineHealth]) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, buckets=buckets, registry=registry)

        self.requests = counter("oscine_requests_total", "Speech requests.", "status", "mode")
        self.finished = counter("oscine_finish_total", "Speeches by finish reason.", "reason")
        self.cancelled = counter("oscine_cancelled_total", "Speeches that the client cancelled or left.")
        self.audio_s = counter("oscine_audio_seconds_total", "Seconds of audio sent.")
        self.ttfa_s = histogram("oscine_ttfa_seconds", "Request to first audio sent, of streamed responses.", _TTFA_S)
        self.audible_ttfa_s = histogram(
            "oscine_audible_ttfa_seconds",
            f"Request to first audible sample (peak above {_AUDIBLE_DBFS:g} dBFS) of a player that starts at once.",
            _TTFA_S,
        )
        self.e2e_s = histogram("oscine_e2e_seconds", "Request to end of its audio.", _E2E_S)
        registry.register(_EngineCollector(engine, health))

    def refused(self, path: str, status: int) -> None:
        """Counts a request that failed before its handler started: unusable body, wrong key, wrong method."""
        if mode := _MODES.get(path):
            self.requests.labels(str(status), mode).inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)


class RequestMetrics:
    """Metrics of one speech, from the request to its end. `mode`: http, sse, batch or websocket."""

    def __init__(self, metrics: Metrics, mode: str, rate_hz: int) -> None:
        self._metrics, self._mode, self._rate_hz = metrics, mode, rate_hz
        self._start_s = time.monotonic()
        self._audible = False
        self._ended = False
        self.samples = 0
        self.first_audio_s: float | None = None

    @property
    def audio_s(self) -> float:
        return self.samples / self._rate_hz

    def sent(self, pcm: bytes) -> None:
        """Counts streamed audio."""
        if not pcm:
            return
        elapsed_s = time.monotonic() - self._start_s
        if self.first_audio_s is None:
            self.first_audio_s = elapsed_s
            self._metrics.ttfa_s.observe(elapsed_s)
        if not self._audible:
            audible = first_audible(np.frombuffer(pcm, "<i2"), _AUDIBLE_DBFS)
            if audible is not None:
                self._audible = True
                # A player that started with the first sample reaches this one after all audio sent before it.
                onset_s = self.first_audio_s + (self.samples + audible) / self._rate_hz
                self._metrics.audible_ttfa_s.observe(max(elapsed_s, onset_s))
        self.sent_whole(len(pcm) // 2)

    def sent_whole(self, samples: int) -> None:
        """Counts audio of a complete file, which has no time to first audio."""
        self.samples += samples
        self._metrics.audio_s.inc(samples / self._rate_hz)

    def ended(self, status: int, reason: FinishReason | None) -> None:
        """Only the first call counts. No reason: the request was refused before any speech."""
        if self._ended:
            return
        self._ended = True
        self._metrics.requests.labels(str(status), self._mode).inc()
        if reason is None:
            return
        self._metrics.finished.labels(reason).inc()
        if reason == "cancelled":
            self._metrics.cancelled.inc()
        elif reason != "error":
            self._metrics.e2e_s.observe(time.monotonic() - self._start_s)


class _EngineCollector(Collector):
    def __init__(self, engine: SpeechEngine, health: Callable[[], EngineHealth]) -> None:
        self._engine, self._health = engine, health

    def collect(self) -> Iterable[Metric]:
        status, health = self._engine.status(), self._health()
        for name, text, value in (
            ("oscine_slots", "Maximum of concurrent streams.", status.slots),
            ("oscine_slots_active", "Running streams.", status.slots_active),
            ("oscine_queue_depth", "Requests waiting for a slot.", status.queued),
            ("oscine_engine_ready", "1 if the engine accepts requests.", int(status.ready)),
            ("oscine_prefix_cache_bytes", "Size of the prefix cache.", status.prefix_bytes),
            ("oscine_memory_bytes", "Device memory held by the engine.", status.memory_bytes),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("oscine_frames", "Frames generated.", status.frames),
            ("oscine_underruns", "Times a client ran out of audio although its text was there.", status.underruns),
            ("oscine_prefix_cache_hits", "Prompts whose prefix was cached.", status.prefix_hits),
            ("oscine_prefix_cache_misses", "Prompts whose prefix was not cached.", status.prefix_misses),
            ("oscine_engine_restarts", "Restarts of the engine process.", health.restarts),
        ):
            yield CounterMetricFamily(name, text, value=value)
        buckets, total = [], 0
        for bound_s, count in zip((*TICK_BOUNDS_S, math.inf), status.ticks.counts, strict=True):
            total += count
            buckets.append(("+Inf" if math.isinf(bound_s) else repr(bound_s), total))
        text = "Duration of a tick: one frame for every running stream."
        yield HistogramMetricFamily("oscine_frame_seconds", text, buckets=buckets, sum_value=status.ticks.sum_s)
