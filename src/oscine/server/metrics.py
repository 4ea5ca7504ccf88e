"""What /metrics tells: counts and times of requests, kept here, and the engine's figures, asked for at each scrape."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from oscine.types import TICK_BOUNDS_S, EngineHealth, FinishReason, SpeechEngine

_FIRST_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10)
_WHOLE_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_MODES = {"/v1/audio/speech": "http", "/v1/audio/speech/batch": "batch"}  # of requests that never became a speech
_AUDIBLE = 32768 * 10 ** (-50 / 20)  # peak above -50 dBFS


class Metrics:
    def __init__(self, engine: SpeechEngine, health: Callable[[], EngineHealth]) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("oscine_requests_total", "Speech requests.", ["status", "mode"], registry=registry)
        self.ttfa_s = Histogram(
            "oscine_ttfa_seconds",
            "Request to first audio sent, of answers that are sent as they are made.",
            buckets=_FIRST_S,
            registry=registry,
        )
        self.audible_ttfa_s = Histogram(
            "oscine_audible_ttfa_seconds",
            "Request to first audible sample (peak above -50 dBFS), were it played as it was sent.",
            buckets=_FIRST_S,
            registry=registry,
        )
        self.e2e_s = Histogram(
            "oscine_e2e_seconds", "Request to end of its audio.", buckets=_WHOLE_S, registry=registry
        )
        self.audio_s = Counter("oscine_audio_seconds_total", "Seconds of audio sent.", registry=registry)
        self.finished = Counter(
            "oscine_finish_total", "Speeches by the reason of their end.", ["reason"], registry=registry
        )
        self.cancelled = Counter(
            "oscine_cancelled_total", "Speeches whose listener left or said so.", registry=registry
        )
        self.registry.register(_EngineFigures(engine, health))

    def refused(self, path: str, status: int) -> None:
        """Before it was known what to say: a body that cannot be used, a wrong key, a wrong method."""
        if mode := _MODES.get(path):
            self.requests.labels(str(status), mode).inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)


class SpeechMeter:
    """One speech, from the request to its end. `mode` is how it travels: http, sse, batch, websocket."""

    def __init__(self, metrics: Metrics, mode: str, rate_hz: int) -> None:
        self._metrics, self._mode, self._rate_hz = metrics, mode, rate_hz
        self._begun_s = time.monotonic()
        self._audible = False
        self._over = False
        self.samples = 0
        self.first_audio_s: float | None = None

    @property
    def audio_s(self) -> float:
        return self.samples / self._rate_hz

    def sent(self, pcm: bytes) -> None:
        """As it is made: somebody may be listening."""
        if not pcm:
            return
        passed_s = time.monotonic() - self._begun_s
        if self.first_audio_s is None:
            self.first_audio_s = passed_s
            self._metrics.ttfa_s.observe(passed_s)
        if not self._audible:
            loud = np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > _AUDIBLE
            if loud.any():
                self._audible = True
                # A player that began with the first sample reaches this one after all that was sent before it.
                onset_s = self.first_audio_s + (self.samples + int(loud.argmax())) / self._rate_hz
                self._metrics.audible_ttfa_s.observe(max(passed_s, onset_s))
        self.sent_whole(len(pcm) // 2)

    def sent_whole(self, samples: int) -> None:
        """A file that nobody hears before its end: it has no first audio."""
        self.samples += samples
        self._metrics.audio_s.inc(samples / self._rate_hz)

    def ended(self, status: int, reason: FinishReason | None) -> None:
        """Once; what comes later is no news. No reason: it was refused, nothing was spoken."""
        if self._over:
            return
        self._over = True
        self._metrics.requests.labels(str(status), self._mode).inc()
        if reason is None:
            return
        self._metrics.finished.labels(reason).inc()
        if reason == "cancelled":
            self._metrics.cancelled.inc()
        elif reason != "error":
            self._metrics.e2e_s.observe(time.monotonic() - self._begun_s)


class _EngineFigures(Collector):
    def __init__(self, engine: SpeechEngine, health: Callable[[], EngineHealth]) -> None:
        self._engine, self._health = engine, health

    def collect(self) -> Iterable[Metric]:
        status, health = self._engine.status(), self._health()
        for name, text, value in (
            ("oscine_slots", "Streams that may run at once.", status.slots),
            ("oscine_slots_active", "Streams that run.", status.slots_active),
            ("oscine_queue_depth", "Requests that wait for a slot.", status.queued),
            ("oscine_engine_ready", "1: the engine serves.", int(status.ready)),
            ("oscine_prefix_cache_bytes", "Beginnings of prompts that are kept.", status.prefix_bytes),
            ("oscine_memory_bytes", "Memory of the device that the engine holds.", status.memory_bytes),
        ):
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in (
            ("oscine_frames", "Frames made.", status.frames),
            ("oscine_underruns", "Times that a listener ran dry although its text was there.", status.underruns),
            ("oscine_prefix_cache_hits", "Prompts whose beginning was kept.", status.prefix_hits),
            ("oscine_prefix_cache_misses", "Prompts whose beginning was not.", status.prefix_misses),
            ("oscine_engine_restarts", "Times that the engine process was started again.", health.restarts),
        ):
            yield CounterMetricFamily(name, text, value=value)
        yield _histogram(
            "oscine_frame_seconds", "A tick: one frame for everyone.", status.ticks.counts, status.ticks.sum_s
        )


def _histogram(name: str, text: str, counts: tuple[int, ...], sum_s: float) -> Metric:
    buckets, total = [], 0
    for bound_s, count in zip((*TICK_BOUNDS_S, math.inf), counts, strict=True):
        total += count
        buckets.append(("+Inf" if math.isinf(bound_s) else repr(bound_s), total))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=sum_s)
