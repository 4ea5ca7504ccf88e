"""Prometheus metrics: requests are counted here, the engine's figures are read at each scrape."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from oscine.process.resources import Account
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.key_usage import Unit
from oscine.speech.models import EngineFigures
from oscine.speech.phrase_cache import PhraseCache
from oscine.speech.word_times import AlignerJob
from oscine.types import TICK_BOUNDS_S, EngineStatus, ModelCard

_TTFA_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10)
_E2E_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
_LOOP_LAG_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_ALIGNER_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
AlignerOutcome = Literal["done", "failed", "busy", "cancelled"]
_Family = TypeVar("_Family", CounterMetricFamily, GaugeMetricFamily)
_MODES = {"/v1/audio/speech": "http", "/v1/audio/speech/batch": "batch"}  # of requests that no handler has counted
AUDIBLE_DBFS = -50.0
INTERVAL_S = 0.02  # between two measurements of the lag; a shorter hold of the loop may be missed


class Metrics:
    """Metrics of speech have the label `model`; it is empty for requests that were refused before one was chosen."""

    def __init__(
        self, engines: Callable[[], Iterable[EngineFigures]], accounts: Callable[[], Iterable[Account]] = tuple
    ) -> None:
        registry = self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("model", *labels), registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ("model",), buckets=buckets, registry=registry)

        self.requests = counter("oscine_requests_total", "Speech requests.", "status", "mode")
        self.finished = counter("oscine_finish_total", "Speeches by finish reason.", "reason")
        self.cancelled = counter("oscine_cancelled_total", "Speeches that the client cancelled or left.")
        self.audio_s = counter("oscine_audio_seconds_total", "Seconds of audio sent.")
        self.ttfa_s = histogram("oscine_ttfa_seconds", "Request to first audio sent, of streamed responses.", _TTFA_S)
        self.audible_ttfa_s = histogram(
            "oscine_audible_ttfa_seconds",
            f"Request to first audible sample (peak above {AUDIBLE_DBFS:g} dBFS) of a player that starts at once.",
            _TTFA_S,
        )
        self.e2e_s = histogram("oscine_e2e_seconds", "Request to end of its audio.", _E2E_S)
        # Of the process, so without a model.
        self.loop_lag_s = Histogram(
            "oscine_loop_lag_seconds",
            "How late the event loop runs what is due, sampled.",
            buckets=_LOOP_LAG_S,
            registry=registry,
        )
        self.aligner_jobs = Counter(
            "oscine_aligner_jobs_total",
            "Segments to align and clips to transcribe, by outcome.",
            ("job", "outcome"),
            registry=registry,
        )
        self.aligner_s = Histogram(
            "oscine_aligner_seconds",
            "Duration of aligner jobs that are done, with their time in the queue.",
            ("job",),
            buckets=_ALIGNER_S,
            registry=registry,
        )
        self.connections = Gauge("oscine_connections", "Open connections.", registry=registry)
        registry.register(_EngineCollector(engines))
        registry.register(_LedgerCollector(accounts))

    def watch_phrases(self, cache: PhraseCache) -> None:
        self.registry.register(_PhraseCollector(cache))

    def watch_keys(self, keys: ApiKeys) -> None:
        self.registry.register(_KeyCollector(keys))

    def of_model(self, card: ModelCard) -> ModelMetrics:
        return ModelMetrics(self, card.name)

    def refused(self, path: str, status: int) -> None:
        """Counts a request that failed before its handler started: unusable body, wrong key, wrong method."""
        if mode := _MODES.get(path):
            self.requests.labels("", str(status), mode).inc()

    def page(self) -> bytes:
        return generate_latest(self.registry)


class ModelMetrics:
    """The metrics of one model; shown from the start, with zeros."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self.name = name
        self.cancelled = metrics.cancelled.labels(name)
        self.audio_s = metrics.audio_s.labels(name)
        self.ttfa_s = metrics.ttfa_s.labels(name)
        self.audible_ttfa_s = metrics.audible_ttfa_s.labels(name)
        self.e2e_s = metrics.e2e_s.labels(name)


class AlignerMetrics:
    """The metrics of the aligner; shown from the start, with zeros."""

    def __init__(self, metrics: Metrics) -> None:
        self._durations_s = {job: metrics.aligner_s.labels(job) for job in get_args(AlignerJob)}
        self._jobs = {
            (job, outcome): metrics.aligner_jobs.labels(job, outcome)
            for job in get_args(AlignerJob)
            for outcome in get_args(AlignerOutcome)
        }

    def refused(self, job: AlignerJob) -> None:
        self._jobs[job, "busy"].inc()

    @contextlib.contextmanager
    def running(self, job: AlignerJob) -> Iterator[None]:
        start_s, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "done"
            self._durations_s[job].observe(time.monotonic() - start_s)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._jobs[job, outcome].inc()


class _EngineCollector(Collector):
    def __init__(self, engines: Callable[[], Iterable[EngineFigures]]) -> None:
        self._engines = engines

    def collect(self) -> Iterable[Metric]:
        engines = list(self._engines())
        for kind, figures in ((GaugeMetricFamily, ENGINE_GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, text, value in figures:
                family = kind(name, text, labels=["model"])
                for one in engines:
                    family.add_metric([one.model], value(one))
                yield family
        text = "Device, dtype and kernels of the engine; always 1."
        info = GaugeMetricFamily("oscine_engine_info", text, labels=["model", "device"])
        for one in engines:
            info.add_metric([one.model, one.status.device], 1)
        yield info
        text = "Duration of a tick: one frame for every running stream."
        ticks = HistogramMetricFamily("oscine_frame_seconds", text, labels=["model"])
        for one in engines:
            ticks.add_metric([one.model], _tick_buckets(one.status), one.status.ticks.sum_s)
        yield ticks


class _PhraseCollector(Collector):
    def __init__(self, cache: PhraseCache) -> None:
        self._cache = cache

    def collect(self) -> Iterable[Metric]:
        cache = self._cache
        yield CounterMetricFamily("oscine_phrase_cache_hits", "Segments from the phrase cache.", cache.hits)
        yield CounterMetricFamily("oscine_phrase_cache_misses", "Segments that it did not have.", cache.misses)
        yield GaugeMetricFamily("oscine_phrase_cache_bytes", "Size of the phrases in it.", cache.bytes)


class _LedgerCollector(Collector):
    def __init__(self, accounts: Callable[[], Iterable[Account]]) -> None:
        self._accounts = accounts

    def collect(self) -> Iterable[Metric]:
        held = {
            False: GaugeMetricFamily("oscine_held_bytes", "Bytes that requests hold in memory.", labels=["kind"]),
            True: GaugeMetricFamily("oscine_jobs", "Jobs that run or wait for a thread.", labels=["kind"]),
        }
        refused = CounterMetricFamily("oscine_refused", "Requests that a limit of the ledger refused.", labels=["kind"])
        for account in self._accounts():
            held[account.limit.threads > 0].add_metric([account.limit.kind], len(account))
            refused.add_metric([account.limit.kind], account.refused)
        yield from (*held.values(), refused)


class _KeyCollector(Collector):
    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def collect(self) -> Iterable[Metric]:
        usage = self._keys.usage
        for name, text, unit, scale in _KEY_COUNTERS:
            spoken = [((key,), amount * scale) for (key, one), amount in usage.spoken.copy().items() if one == unit]
            yield _family(CounterMetricFamily(name, text, labels=["key"]), spoken)
        text = "Requests that a limit of the key refused."
        family = CounterMetricFamily("oscine_key_refused", text, labels=["key", "limit"])
        yield _family(family, usage.refused.copy().items())
        streams = [((key,), running) for key, running in self._keys.streams_by_name().items()]
        yield _family(GaugeMetricFamily("oscine_key_streams", "Running streams of the key.", labels=["key"]), streams)
        text = "0 if the file of API keys cannot be read, or that of their usage cannot be written."
        yield GaugeMetricFamily("oscine_key_files_work", text, int(self._keys.files_work))


_KEY_COUNTERS: tuple[tuple[str, str, Unit, float], ...] = (
    ("oscine_key_requests", "Speeches of the key.", "requests", 1),
    ("oscine_key_characters", "Characters of its speeches.", "characters", 1),
    ("oscine_key_audio_seconds", "Seconds of audio that it was sent.", "audio_ms", 0.001),
)
_MAX_KEYS = 1000  # that have series of their own


def _family(family: _Family, figures: Iterable[tuple[tuple[str, ...], float]]) -> _Family:
    """Adds the figures by labels, of which the first is a key. Those of too many keys are added up."""
    names: set[str] = set()
    totals: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for (key, *rest), value in figures:
        if len(names) < _MAX_KEYS:
            names.add(key)
        totals[(key if key in names else "(others)", *rest)] += value
    for labels, value in totals.items():
        family.add_metric(labels, value)
    return family


_Figure = Callable[[EngineFigures], float]
ENGINE_GAUGES: tuple[tuple[str, str, _Figure], ...] = (
    ("oscine_slots", "Maximum of concurrent streams.", lambda one: one.status.slots),
    ("oscine_slots_active", "Running streams.", lambda one: one.status.slots_active),
    ("oscine_queue_depth", "Requests waiting for a slot.", lambda one: one.status.queued),
    ("oscine_engine_ready", "1 if the engine accepts requests.", lambda one: int(one.status.ready)),
    ("oscine_prefix_cache_bytes", "Size of the prefix cache.", lambda one: one.status.prefix_bytes),
    ("oscine_memory_bytes", "Device memory held by the engine.", lambda one: one.status.memory_bytes),
)
_COUNTERS: tuple[tuple[str, str, _Figure], ...] = (
    ("oscine_frames", "Frames generated.", lambda one: one.status.frames),
    (
        "oscine_underruns",
        "Times a client ran out of audio although its text was there.",
        lambda one: one.status.underruns,
    ),
    ("oscine_prefix_cache_hits", "Prompts whose prefix was cached.", lambda one: one.status.prefix_hits),
    ("oscine_prefix_cache_misses", "Prompts whose prefix was not cached.", lambda one: one.status.prefix_misses),
    ("oscine_engine_restarts", "Restarts of the engine process.", lambda one: one.health.restarts),
)


def _tick_buckets(status: EngineStatus) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound_s, count in zip((*TICK_BOUNDS_S, math.inf), status.ticks.counts, strict=True):
        total += count
        buckets.append(("+Inf" if math.isinf(bound_s) else repr(bound_s), total))
    return buckets


async def watch_loop_lag(observe: Callable[[float], object]) -> None:
    """Measures how late the event loop runs what is due, until it is cancelled: each stream waits at least that
    long."""
    while True:
        due_s = time.monotonic() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        observe(max(0.0, time.monotonic() - due_s))
