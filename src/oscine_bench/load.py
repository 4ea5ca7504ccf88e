"""Sends the requests of one load: a closed loop of callers that wait for their responses, or an open loop of arrivals
that do not wait."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oscine.errors import RequestError
from oscine_bench.exchange import BenchClient, Exchange, RequestFailure
from oscine_bench.metrics import spread
from oscine_bench.summary import MeasurementWindow, RequestOutcome, Row, analyze, summarize
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest, Workload, arrivals

_LAG_INTERVAL_S = 0.02
# A refused caller waits before its next request; otherwise the speed of refusals would be measured.
_REFUSALS = ("connect", "http_429", "http_503")
_MIN_WAIT_S, DEFAULT_WAIT_S, _MAX_WAIT_S = 0.05, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    kind: Literal["closed", "open"]
    value: float  # callers, or requests per second

    def __post_init__(self) -> None:
        valid = math.isfinite(self.value) and self.value > 0
        if self.kind == "closed" and not (valid and self.value % 1 == 0):
            raise RequestError(f"the number of callers must be an integer above 0, got {self.value:g}", "concurrency")
        if not valid:
            raise RequestError(f"the request rate must be above 0 per second, got {self.value:g}", "rate")

    def __str__(self) -> str:
        return f"closed loop, {self.value:g}" if self.kind == "closed" else f"open loop, {self.value:g}/s"


@dataclass(frozen=True, slots=True)
class RunLength:
    """The length of a measurement in seconds or requests, after a warm-up at the same load."""

    duration_s: float = 30.0
    requests: int | None = None  # instead of duration_s
    warmup_s: float = 5.0
    max_in_flight: int = 4096  # an open loop sends no more while this many requests wait for a response
    max_s: float | None = None  # of the whole load; requests that run then are cut off and not counted

    def __post_init__(self) -> None:
        if self.requests is None and not self.duration_s > 0:
            raise RequestError(f"the duration must be above 0 s, got {self.duration_s:g}", "duration_s")
        if self.requests is not None and self.requests < 1:
            raise RequestError(f"the number of requests must be at least 1, got {self.requests}", "requests")
        if not self.warmup_s >= 0:
            raise RequestError(f"the warm-up must be 0 s or more, got {self.warmup_s:g}", "warmup_s")

    def seconds_at(self, rate_per_s: float) -> float:
        """Returns how long an open loop sends."""
        return self.warmup_s + (self.duration_s if self.requests is None else self.requests / rate_per_s)


@dataclass(slots=True)
class LoadProgress:
    """Counters for a progress line."""

    load: OfferedLoad
    phase: str = "warming up"
    sent: int = 0
    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    last_first_byte_s: float | None = None


@dataclass(slots=True)
class LoadRun:
    client: BenchClient
    target: Target
    workload: Workload
    load: OfferedLoad
    length: RunLength
    keep: Callable[[Exchange], None] = lambda exchange: None  # called with every exchange, for callers that need bytes
    # Asked about every outcome. True ends the load: requests that run are cut off and not counted.
    is_decided: Callable[[RequestOutcome], bool] = lambda outcome: False
    outcomes: list[RequestOutcome] = field(default_factory=list)
    begin_s: float = 0.0  # of the measurement
    unfinished: int = 0  # requests that were cut off at the end
    progress: LoadProgress = field(init=False)
    _limit: asyncio.Timeout = field(init=False)
    _decided_s: float = math.inf
    _deferred: list[Exchange] = field(default_factory=list)  # too costly to decode while others are measured

    def __post_init__(self) -> None:
        self.progress = LoadProgress(self.load)

    async def run(self) -> Row:
        """Runs the load and returns its row of figures."""
        with _garbage_collection_off(), _ClientCost() as cost:
            await self._send_all()
        self.progress.phase = "analyzing"
        self.outcomes += [analyze(exchange, self.target) for exchange in self._deferred]
        self._deferred.clear()
        row = summarize(self.outcomes, self._window())
        return {"load": {"kind": self.load.kind, "value": self.load.value}, **row, "client": cost.figures}

    async def _send_all(self) -> None:
        try:
            async with asyncio.timeout(self.length.max_s) as self._limit:
                await (self._closed_loop() if self.load.kind == "closed" else self._open_loop())
        except TimeoutError:
            if not self._limit.expired():
                raise

    def _window(self) -> MeasurementWindow:
        if self.length.requests is None or not self.outcomes:
            return MeasurementWindow(self.begin_s, min(self.begin_s + self.length.duration_s, self._decided_s))
        return MeasurementWindow(self.begin_s, max(outcome.end_s for outcome in self.outcomes))

    async def _closed_loop(self) -> None:
        requests = self._closed_requests()
        await _gather([asyncio.create_task(self._caller(requests)) for _ in range(int(self.load.value))])

    async def _caller(self, requests: Iterator[PlannedRequest]) -> None:
        for request in requests:
            exchange = await self._send(request, None)
            if exchange.failure is not None and exchange.failure.kind in _REFUSALS:
                await asyncio.sleep(min(retry_after_s(exchange), _MAX_WAIT_S))

    def _closed_requests(self) -> Iterator[PlannedRequest]:
        """Yields the requests that all callers share."""
        warm_s = time.perf_counter() + self.length.warmup_s
        for request in self.workload.requests("warmup"):
            if time.perf_counter() >= warm_s:
                break
            yield request
        self._begin(time.perf_counter())
        for request in self.workload.requests("measured"):
            if self._is_over(request.index, time.perf_counter()):
                return
            yield request

    async def _open_loop(self) -> None:
        start_s = time.perf_counter()
        warm_s = start_s + self.length.warmup_s
        warmup, measured = self.workload.requests("warmup"), self.workload.requests("measured")
        in_flight: set[asyncio.Task[Exchange]] = set()
        try:
            for offset_s in arrivals(self.load.value, self.workload.seed):
                due_s = start_s + offset_s
                if due_s >= warm_s and not self.begin_s:
                    self._begin(warm_s)
                request = next(measured if self.begin_s else warmup)
                if self.begin_s and self._is_over(request.index, due_s):
                    break
                if (wait_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(wait_s)
                task = asyncio.create_task(self._send(request, due_s))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            await asyncio.gather(*in_flight)
        finally:
            await _cancel(list(in_flight))

    def _begin(self, at_s: float) -> None:
        self.begin_s, self.progress.phase = at_s, "measuring"

    def _is_over(self, index: int, at_s: float) -> bool:
        if self.length.requests is not None:
            return index >= self.length.requests
        return at_s >= self.begin_s + self.length.duration_s

    async def _send(self, request: PlannedRequest, due_s: float | None) -> Exchange:
        progress = self.progress
        if due_s is not None and progress.in_flight >= self.length.max_in_flight:
            now_s = time.perf_counter()
            failure = RequestFailure("not_sent", f"{progress.in_flight} requests were already in flight")
            exchange = Exchange(request, due_s, now_s, now_s, failure=failure)
        else:
            progress.sent += 1
            progress.in_flight += 1
            try:
                exchange = await self.client.send(request, due_s)
            except asyncio.CancelledError:
                self.unfinished += 1
                raise
            finally:
                progress.in_flight -= 1
        self.keep(exchange)
        if exchange.arrived_s:
            progress.last_first_byte_s = exchange.arrived_s[0] - exchange.sent_s
        progress.answered += 1
        progress.failed += exchange.failure is not None
        if self.target.cheap_to_decode or exchange.failure is not None:
            self.outcomes.append(analyze(exchange, self.target))
            if self.is_decided(self.outcomes[-1]) and not self._limit.expired():
                self._decided_s = time.perf_counter()
                self._limit.reschedule(asyncio.get_running_loop().time())
        else:
            self._deferred.append(exchange)
        return exchange


class _ClientCost:
    """What this process used of a core, how long it waited for one (Linux only), and how late its event loop was, which
    is the error of its times."""

    def __enter__(self) -> _ClientCost:
        self._lags_s: list[float] = []
        self._timer = asyncio.create_task(self._measure_lag())
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        (began_s, cpu_s, waited_s), now = self._before, self._now()
        took_s = max(now[0] - began_s, 1e-9)
        starved = None if waited_s is None or now[2] is None else (now[2] - waited_s) / took_s
        self.figures: dict[str, Any] = {
            "cpu_share": (now[1] - cpu_s) / took_s,
            "starved_share": starved,
            "loop_lag_ms": spread(self._lags_s, scale=1e3),
        }

    @staticmethod
    def _now() -> tuple[float, float, float | None]:
        try:
            waited_s = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            waited_s = None
        return time.perf_counter(), time.process_time(), waited_s

    async def _measure_lag(self) -> None:
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(_LAG_INTERVAL_S)
            self._lags_s.append(max(0.0, time.perf_counter() - before_s - _LAG_INTERVAL_S))


def retry_after_s(exchange: Exchange) -> float:
    """Returns the server's Retry-After; one second if it is missing or a date."""
    try:
        return max(float(exchange.headers.get("retry-after", "")), _MIN_WAIT_S)
    except ValueError:
        return DEFAULT_WAIT_S


async def _gather(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Waits for all tasks; if one raises, the others are cancelled."""
    try:
        await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """Disables collections, which would stop every stream for milliseconds; exchanges form no cycles."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
