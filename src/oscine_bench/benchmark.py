"""Runs one benchmark: checks the server with one request, runs the loads, and shows progress on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from oscine.errors import OscineError, RequestError
from oscine_bench.connections import Clock
from oscine_bench.exchange import BenchClient
from oscine_bench.http_client import HttpClient
from oscine_bench.load import LoadProgress, LoadRun, OfferedLoad, RunLength
from oscine_bench.report import number
from oscine_bench.search import RateSearch, SearchLimits, Verdict, length_at, measured_requests
from oscine_bench.summary import Row, analyze
from oscine_bench.targets import TRITON, Target
from oscine_bench.triton_client import TritonClient
from oscine_bench.websocket_client import WebSocketClient
from oscine_bench.workload import Workload

_T = TypeVar("_T")
_REFRESH_S = 0.5


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Runs a coroutine with uvloop if installed, which halves the cost of a read."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@contextlib.asynccontextmanager
async def open_client(
    target: Target, timeout_s: float = 120.0, word_interval_s: float | None = None
) -> AsyncIterator[BenchClient]:
    client: BenchClient
    if target.preset.transport == TRITON:
        client = TritonClient(target, timeout_s=timeout_s)
    elif target.preset.transport == "websocket":
        client = WebSocketClient(target, timeout_s=timeout_s, word_interval_s=word_interval_s)
    else:
        client = HttpClient(target, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class Served:
    """What /v1/models reports; empty if the server has no such list."""

    names: list[str] = field(default_factory=list)
    streams: int = 0  # that stay in real time; 0: not stated


async def served_models(target: Target) -> Served:
    if target.preset.transport == TRITON:
        return Served([target.served_model])
    client = HttpClient(target, timeout_s=10)
    try:
        exchange = await client.get("/v1/models")
        listed = json.loads(b"".join(exchange.body)) if exchange.status == 200 else {}
        models: dict[str, dict[str, Any]] = {str(model["id"]): model for model in listed.get("data", [])}
        asked = models.get(target.model or "") or next(iter(models.values()), {})
        return Served([*models][:20], int(asked.get("real_time_streams") or 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Served()
    finally:
        await client.close()


@dataclass(frozen=True, slots=True)
class SearchResult:
    rate_per_s: float | None  # the highest that held
    complete: bool  # otherwise the time limit ended the search


@dataclass(slots=True)
class Bench:
    target: Target
    workload: Workload
    length: RunLength
    timeout_s: float = 120.0
    word_interval_s: float | None = None
    records: Path | None = None  # one JSON line per request; an existing file is replaced
    on_row: Callable[[Row], None] = lambda row: None
    on_step: Callable[[str], None] = lambda message: None  # what a search does next, and why it ends
    served: Served = field(default_factory=Served)
    clock: Clock = time.perf_counter
    first_audio_s: float = 0.0  # length of the first response

    async def run(self, loads: Sequence[OfferedLoad]) -> list[Row]:
        rows: list[Row] = []
        async with self._client() as client:
            for load in loads:
                rows.append(await self._measure(client, load, self.length))
                if left := len(loads) - len(rows):
                    self._check_reachable(rows[-1], f"{left} of {len(loads)} loads were not measured")
        return rows

    async def search(
        self, limits: SearchLimits, *, first: float | None = None, time_limit_s: float = math.inf, **rates: float
    ) -> SearchResult:
        """Ends within the time limit, with the best rate so far. By default it begins with the capacity that the server
        reports. `rates`: more fields of RateSearch."""
        end_s = self.clock() + time_limit_s
        async with self._client() as client:
            search = RateSearch(first or self._first_rate(), **rates)
            while (rate := search.next_rate()) is not None:
                left_s = end_s - self.clock()
                length = length_at(rate, self.length, left_s, may_shorten=search.low is None)
                takes_s = length.seconds_at(rate)
                if takes_s > left_s:
                    if search.low is None and search.high is None:
                        message = f"the first rate, {number(rate)}/s, takes {takes_s:.0f} s"
                        raise RequestError(f"--time-limit-s {time_limit_s:g} is too short: {message}", "time_limit_s")
                    self.on_step(
                        f"the time limit of {time_limit_s:g} s ends the search before {number(rate)}/s, which takes "
                        f"{takes_s:.0f} s; raise --time-limit-s for a closer result"
                    )
                    return SearchResult(search.low, complete=False)
                within = f", within {left_s:.0f} s" if math.isfinite(left_s) else ""
                self.on_step(
                    f"open loop, {number(rate)}/s: takes {takes_s:.0f} s and the last responses; at most "
                    f"{search.max_steps - 1} more rates{within}"
                )
                length = replace(length, max_s=left_s if math.isfinite(left_s) else None)
                row = await self._measure(client, OfferedLoad("open", rate), length, limits)
                self._check_reachable(row, "the search ends")
                search.add(rate, not row["limits_broken"])
        return SearchResult(search.low, complete=True)

    def _first_rate(self) -> float:
        """Returns the rate at which all streams that the server can run in real time are busy."""
        if not self.served.streams or not self.first_audio_s:
            self.on_step("the server does not report its capacity; starting at 1 request/s")
            return 1.0
        rate, streams = self.served.streams / self.first_audio_s, self.served.streams
        self.on_step(
            f"the server reports {streams} stream{'s' if streams > 1 else ''} in real time, and a response has "
            f"{self.first_audio_s:.1f} s: starting at {number(rate)} requests/s"
        )
        return rate

    def figures(self, rows: Sequence[Row]) -> dict[str, Any]:
        length = self.length
        span = {"duration_s": length.duration_s} if length.requests is None else {"requests": length.requests}
        return {
            "target": {**self.target.described(), "served": self.served.names, "word_interval_s": self.word_interval_s},
            "workload": {"name": self.workload.name, "texts": len(self.workload.texts), "seed": self.workload.seed},
            "span": {**span, "warmup_s": length.warmup_s},
            "frames": self.target.frames,
            "loads": list(rows),
        }

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[BenchClient]:
        """Checks the records file and sends one request first, so that a wrong path, address or voice is one clear
        error instead of a table of failures."""
        if self.records is not None:
            with _write_errors(self.records):
                self.records.write_text("")
        async with open_client(self.target, self.timeout_s, self.word_interval_s) as client:
            outcome = analyze(await client.send(next(self.workload.requests("warmup"))), self.target)
            failure, self.first_audio_s = outcome.failure, outcome.audio_s
            if failure is not None:
                hint = "; is it running?" if failure.kind == "connect" else ""
                raise OscineError(
                    f"the first request to {self.target.url} failed ({failure.kind}): {failure.message}{hint}"
                )
            self.served = await served_models(self.target)
            yield client

    async def _measure(
        self, client: BenchClient, load: OfferedLoad, length: RunLength, limits: SearchLimits | None = None
    ) -> Row:
        run = LoadRun(client, self.target, self.workload, load, length)
        if limits is not None:
            run.is_decided = Verdict(limits, measured_requests(load.value, self.workload.seed, length)).is_final
        with progress_line(run.progress):
            row = await run.run()
        if limits is not None:
            row["limits_broken"] = limits.violations(row)
            if run.unfinished and not row["limits_broken"]:
                row["limits_broken"] = [f"not known: {run.unfinished} responses had not ended at the time limit"]
        self.on_row(row)
        if self.records is not None:
            with _write_errors(self.records), self.records.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in _records(run))
        return row

    def _check_reachable(self, row: Row, consequence: str) -> None:
        if not row["succeeded"] and row["failures"].keys() == {"connect"}:
            raise OscineError(f"lost the server at {self.target.url}; {consequence}")


def _records(run: LoadRun) -> Iterator[Row]:
    """Returns everything needed to recompute the figures or repeat a request. Times count from the window's start."""
    for outcome in run.outcomes:
        yield {
            "load": str(run.load),
            "index": outcome.request.index,
            "measured": outcome.measured,
            "text": outcome.request.text,
            "seed": outcome.request.seed,
            "due_s": outcome.due_s - run.begin_s,
            "sent_s": outcome.sent_s - run.begin_s,
            "failure": outcome.failure and [outcome.failure.kind, outcome.failure.message],
            "e2e_s": outcome.e2e_s,
            "audible_s": outcome.audible_s,
            "deficit_s": outcome.playback and outcome.playback.deficit_s,
            "arrived_s": outcome.timeline and outcome.timeline.arrived_s,
            "heard_s": outcome.timeline and outcome.timeline.audio_s,
        }


@contextlib.contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OscineError(f"cannot write {str(path)!r}: {error}") from None


@contextlib.contextmanager
def progress_line(progress: LoadProgress) -> Iterator[None]:
    """Shows one line on a terminal, twice a second. Plain text, because drawing a progress bar would block the measured
    streams for milliseconds."""
    if not sys.stderr.isatty():
        yield
        return
    task = asyncio.create_task(_show(progress))
    try:
        yield
    finally:
        task.cancel()
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


async def _show(progress: LoadProgress) -> None:
    while True:
        first = progress.last_first_byte_s
        first_byte = "" if first is None else f", first byte {first * 1e3:.0f} ms"
        sys.stderr.write(
            f"\r\x1b[2K{progress.load}: {progress.phase}, {progress.answered} of {progress.sent} answered, "
            f"{progress.in_flight} in flight, {progress.failed} failed{first_byte}"
        )
        sys.stderr.flush()
        await asyncio.sleep(_REFRESH_S)
