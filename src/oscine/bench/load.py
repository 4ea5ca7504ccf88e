"""Requests are sent: by a fixed number of callers who wait for their answers (closed loop), by a crowd that does not
wait (open loop), or by ever larger crowds, to find how large one may be (search)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from oscine.bench.exchange import Client, Exchange, Failure
from oscine.bench.metrics import MIN_FOR_P95, spread
from oscine.bench.pool import Clock
from oscine.bench.summary import Answer, Judge, Window, summarise
from oscine.bench.workload import Utterance, Workload, arrivals
from oscine.types import RequestError

_BEAT_S = 0.02
# A caller who was sent away does not come back at once: a crowd that does measures how fast a server can refuse.
_SENT_AWAY = ("connect", "http_429", "http_503")
_MIN_WAIT_S, _USUAL_WAIT_S, _MAX_WAIT_S = 0.05, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Load:
    kind: Literal["closed", "open"]
    value: float  # callers, or requests per second

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value > 0) or (self.kind == "closed" and self.value % 1):
            what = "callers are a whole number" if self.kind == "closed" else "a rate is requests per second,"
            raise RequestError(
                f"{what} above 0, got {self.value:g}", "concurrency" if self.kind == "closed" else "rate"
            )

    def __str__(self) -> str:
        return f"closed loop, {self.value:g}" if self.kind == "closed" else f"open loop, {self.value:g}/s"


@dataclass(frozen=True, slots=True)
class Span:
    """How long: for so many seconds, or for so many requests; after a warm-up at the same load that is not counted."""

    duration_s: float = 30.0
    requests: int | None = None  # instead of duration_s
    warmup_s: float = 5.0
    max_in_flight: int = 4096  # an open loop's crowd before a server that has given up; beyond, nothing is sent

    def __post_init__(self) -> None:
        if self.requests is None and not self.duration_s > 0:
            raise RequestError(f"a run lasts more than 0 s, got {self.duration_s:g}", "duration_s")
        if self.requests is not None and self.requests < 1:
            raise RequestError(f"a run is at least 1 request, got {self.requests}", "requests")
        if not self.warmup_s >= 0:
            raise RequestError(f"a warm-up lasts 0 s or more, got {self.warmup_s:g}", "warmup_s")


@dataclass(slots=True)
class Progress:
    """What a display may show while a load runs; reading it costs nothing."""

    load: Load
    phase: str = "warming up"
    sent: int = 0
    answered: int = 0
    failed: int = 0
    in_flight: int = 0
    last_first_audio_s: float | None = None


@dataclass(slots=True)
class LoadRun:
    """One load while it runs, and what came of it."""

    client: Client
    judge: Judge
    workload: Workload
    load: Load
    span: Span
    clock: Clock = time.perf_counter
    on_start: Callable[[Progress], None] = lambda progress: None
    keep: Callable[[Exchange], None] = lambda exchange: None  # for those who want the bytes, too
    answers: list[Answer] = field(default_factory=list)
    _late: list[Exchange] = field(default_factory=list)  # whose sound is too costly to judge while others are measured
    _lags_s: list[float] = field(default_factory=list)
    begin_s: float = 0.0  # of the time that is measured
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.load)

    async def run(self) -> dict[str, Any]:
        """The row of figures for this load."""
        self.on_start(self.progress)
        with _quiet_collector():
            heart = asyncio.create_task(self._beat())
            spent = _Spent()
            try:
                await (self._closed() if self.load.kind == "closed" else self._open())
            finally:
                heart.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await heart
            shares = spent.shares()
        self.progress.phase = "judging"
        self.answers += map(self.judge, self._late)
        self._late.clear()
        row = summarise(self.answers, self._window())
        client = {**shares, "loop_lag_ms": spread(self._lags_s, scale=1e3)}
        return {"load": {"kind": self.load.kind, "value": self.load.value}, **row, "client": client}

    def _window(self) -> Window:
        if self.span.requests is None:
            return Window(self.begin_s, self.begin_s + self.span.duration_s)
        return Window(self.begin_s, max(answer.sent_s + answer.e2e_s for answer in self.answers))

    async def _closed(self) -> None:
        turns = self._turns()
        callers = [asyncio.create_task(self._caller(turns)) for _ in range(int(self.load.value))]
        await _all(callers)

    async def _caller(self, turns: Iterator[Utterance]) -> None:
        for utterance in turns:
            exchange = await self._one(utterance, None)
            if exchange.failure is not None and exchange.failure.kind in _SENT_AWAY:
                await asyncio.sleep(min(retry_after_s(exchange), _MAX_WAIT_S))

    def _turns(self) -> Iterator[Utterance]:
        """What the next free caller asks; shared by all of them."""
        warm_s = self.clock() + self.span.warmup_s
        for utterance in self.workload.utterances("warmup"):
            if self.clock() >= warm_s:
                break
            yield utterance
        self._begin()
        for utterance in self.workload.utterances("measured"):
            if self._over(utterance.index, self.clock()):
                return
            yield utterance

    async def _open(self) -> None:
        start_s = self.clock()
        warm_s = start_s + self.span.warmup_s
        warming, measured = self.workload.utterances("warmup"), self.workload.utterances("measured")
        under_way: set[asyncio.Task[Exchange]] = set()
        for offset_s in arrivals(self.load.value, self.workload.seed):
            due_s = start_s + offset_s
            if due_s < warm_s:
                utterance = next(warming)
            else:
                if not self.begin_s:
                    self._begin(warm_s)
                utterance = next(measured)
                if self._over(utterance.index, due_s):
                    break
            if (wait_s := due_s - self.clock()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(self._one(utterance, due_s))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await _all(list(under_way))

    def _begin(self, at_s: float | None = None) -> None:
        self.begin_s = self.clock() if at_s is None else at_s
        self.progress.phase = "measuring"

    def _over(self, index: int, at_s: float) -> bool:
        if self.span.requests is not None:
            return index >= self.span.requests
        return at_s >= self.begin_s + self.span.duration_s

    async def _one(self, utterance: Utterance, due_s: float | None) -> Exchange:
        progress = self.progress
        if due_s is not None and progress.in_flight >= self.span.max_in_flight:
            now_s = self.clock()
            failure = Failure("not_sent", f"{progress.in_flight} requests were already waiting for an answer")
            exchange = Exchange(utterance, due_s, now_s, now_s, failure=failure)
        else:
            progress.sent += 1
            progress.in_flight += 1
            try:
                exchange = await self.client.speak(utterance, due_s)
            finally:
                progress.in_flight -= 1
        self.keep(exchange)
        if exchange.arrived_s:
            progress.last_first_audio_s = exchange.arrived_s[0] - exchange.sent_s
        progress.answered += 1
        progress.failed += exchange.failure is not None
        if self.judge.cheap or exchange.failure is not None:
            self.answers.append(self.judge(exchange))
        else:
            self._late.append(exchange)
        return exchange

    async def _beat(self) -> None:
        """How late this process comes to anything: what a time measured by it may be wrong by."""
        while True:
            before_s = time.perf_counter()
            await asyncio.sleep(_BEAT_S)
            self._lags_s.append(max(0.0, time.perf_counter() - before_s - _BEAT_S))


class _Spent:
    """What this process took of a core, and how long it waited for one that others had: Linux says both."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float | None]:
        try:
            waited_s = int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            waited_s = None
        return time.perf_counter(), time.process_time(), waited_s

    def shares(self) -> dict[str, float | None]:
        (began_s, cpu_s, waited_s), now = self._before, self._now()
        took_s = max(now[0] - began_s, 1e-9)
        starved = None if waited_s is None or now[2] is None else (now[2] - waited_s) / took_s
        return {"cpu_share": (now[1] - cpu_s) / took_s, "starved_share": starved}


def seconds_for_p95(rate_per_s: float) -> float:
    """Half as long again as so many requests take on average: chance may bring fewer."""
    return 1.5 * MIN_FOR_P95 / rate_per_s


def retry_after_s(exchange: Exchange) -> float:
    """How long a server that was too busy wants to be left alone; not told, or told as a date: a second."""
    try:
        return max(float(exchange.headers.get("retry-after", "")), _MIN_WAIT_S)
    except ValueError:
        return _USUAL_WAIT_S


async def _all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Where one raises (a bug of ours, or an interrupt), none is left running."""
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """A full collection would stop every stream for milliseconds; exchanges make no cycles that matter."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a rate must hold to be called sustained. No request may fail."""

    figure: str = "first_audio_ms"  # or audible_ms, e2e_ms
    p95_ms: float = 50.0
    underrun_ms: float = 0.0  # of any request; 0: not one; infinite: nobody listens, so nobody asks

    def __post_init__(self) -> None:
        if not self.p95_ms > 0:
            raise RequestError(f"a 95th percentile is limited to more than 0 ms, got {self.p95_ms:g}", "p95_ms")
        if not self.underrun_ms >= 0:
            raise RequestError(f"an underrun is limited to 0 ms or more, got {self.underrun_ms:g}", "underrun_ms")

    def broken_by(self, row: dict[str, Any]) -> list[str]:
        reasons = [f"{kind}: {failure['count']}" for kind, failure in row["failures"].items()]
        if not row["succeeded"]:
            return reasons or ["no request came in the time that was measured"]
        if row["inaudible"]:
            reasons.append(f"nothing audible: {row['inaudible']}")
        worst_ms = row["underruns"]["worst_deficit_ms"]
        if worst_ms is None and math.isfinite(self.underrun_ms):
            reasons.append("underruns: not applicable, the answers were not streamed")
        elif worst_ms is not None and worst_ms > self.underrun_ms:
            reasons.append(f"underruns: worst {worst_ms:.1f} ms")
        p95_ms = row[self.figure]["p95"] if row[self.figure] else math.inf
        if p95_ms > self.p95_ms:
            reasons.append(f"{self.figure.removesuffix('_ms').replace('_', ' ')} p95: {p95_ms:.1f} ms")
        return reasons


async def search_rate(
    holds: Callable[[float], Awaitable[bool]],
    *,
    first: float = 1.0,
    most: float = 1000.0,
    least: float = 0.05,
    resolution: float = 0.05,
) -> float | None:
    """The highest rate that holds, within `resolution` below the lowest that was seen not to: doubling (or halving, as
    long as none holds), then the geometric mean of both. None where not even `least` holds."""
    low, high = None, None
    rate = min(first, most)
    while low is None or high is None:
        if await holds(rate):
            low = rate
            if rate >= most:
                return low
            rate = min(2 * rate, most) if high is None else rate
        else:
            high = rate
            rate = rate / 2 if low is None else rate
            if rate < least and low is None:
                return None
    while high / low > 1 + resolution:
        middle = math.sqrt(low * high)
        if await holds(middle):
            low = middle
        else:
            high = middle
    return low
