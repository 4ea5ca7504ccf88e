"""One run of the benchmark: checks the server with one request, runs the loads, and shows progress on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from oscine.errors import OscineError
from oscine_bench.exchange import BenchClient
from oscine_bench.http_client import HttpClient
from oscine_bench.load import LoadProgress, LoadRun, OfferedLoad, RunLength
from oscine_bench.search import SearchLimits, search_rate, seconds_for_p95
from oscine_bench.summary import Row, analyze
from oscine_bench.targets import TRITON, Target
from oscine_bench.triton_client import TritonClient
from oscine_bench.websocket_client import WebSocketClient
from oscine_bench.workload import Workload

_T = TypeVar("_T")
_REFRESH_S = 0.5


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """Uses uvloop if installed; it halves the cost of a read."""
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


async def served_models(target: Target) -> list[str]:
    """Model names from /v1/models; empty if the server has no such list."""
    if target.preset.transport == TRITON:
        return [target.served_model]
    client = HttpClient(target, timeout_s=10)
    try:
        exchange = await client.get("/v1/models")
        listed = json.loads(b"".join(exchange.body)) if exchange.status == 200 else {}
        return [str(model["id"]) for model in listed.get("data", [])][:20]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    finally:
        await client.close()


@dataclass(slots=True)
class Bench:
    target: Target
    workload: Workload
    length: RunLength
    timeout_s: float = 120.0
    word_interval_s: float | None = None
    records: Path | None = None  # one JSON line per request; an existing file is replaced
    on_row: Callable[[Row], None] = lambda row: None
    served: list[str] = field(default_factory=list)  # model names

    async def run(self, loads: Sequence[OfferedLoad]) -> list[Row]:
        rows: list[Row] = []
        async with self._client() as client:
            for load in loads:
                rows.append(await self._measure(client, load, self.length))
                if left := len(loads) - len(rows):
                    self._check_reachable(rows[-1], f"{left} of {len(loads)} loads were not measured")
        return rows

    async def search(self, limits: SearchLimits, **rates: float) -> tuple[float | None, list[Row]]:
        """`rates`: arguments of search_rate."""
        tried: list[Row] = []
        async with self._client() as client:

            async def holds(rate: float) -> bool:
                # A low rate needs more time: two lucky requests do not show that a limit holds.
                length = replace(self.length, duration_s=max(self.length.duration_s, seconds_for_p95(rate)))
                row = await self._measure(client, OfferedLoad("open", rate), length, limits)
                tried.append(row)
                self._check_reachable(row, "the search ends")
                return not row["limits_broken"]

            best = await search_rate(holds, **rates)
        return best, sorted(tried, key=lambda row: row["load"]["value"])

    def figures(self, rows: Sequence[Row]) -> dict[str, Any]:
        length = self.length
        span = {"duration_s": length.duration_s} if length.requests is None else {"requests": length.requests}
        return {
            "target": {**self.target.described(), "served": self.served, "word_interval_s": self.word_interval_s},
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
            failure = analyze(await client.send(next(self.workload.requests("warmup"))), self.target).failure
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
        with progress_line(run.progress):
            row = await run.run()
        if limits is not None:
            row["limits_broken"] = limits.violations(row)
        self.on_row(row)
        if self.records is not None:
            with _write_errors(self.records), self.records.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(record) + "\n" for record in _records(run))
        return row

    def _check_reachable(self, row: Row, consequence: str) -> None:
        if not row["succeeded"] and row["failures"].keys() == {"connect"}:
            raise OscineError(f"lost the server at {self.target.url}; {consequence}")


def _records(run: LoadRun) -> Iterator[Row]:
    """Everything needed to recompute the figures or repeat a request. Times count from the window's start."""
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
    """One line on a terminal, twice a second. Plain text: drawing a progress bar would block the measured streams for
    milliseconds."""
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
