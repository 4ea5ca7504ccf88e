"""One run of the benchmark from end to end: a client for the target, a first request to see that anybody is there, the
loads one after the other, and a line on the terminal meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from oscine.bench.client import HttpClient
from oscine.bench.exchange import Client
from oscine.bench.live import LiveClient
from oscine.bench.load import Limits, Load, LoadRun, Progress, Span, search_rate, seconds_for_p95
from oscine.bench.summary import Judge
from oscine.bench.targets import Target
from oscine.bench.workload import Workload
from oscine.types import OscineError

Row = dict[str, Any]
_T = TypeVar("_T")
_REFRESH_S = 0.5


def run_async(main: Coroutine[Any, Any, _T]) -> _T:
    """On uvloop where there is one: half the cost of a read."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


@contextlib.asynccontextmanager
async def open_client(target: Target, timeout_s: float, word_interval_s: float | None = None) -> AsyncIterator[Client]:
    client: Client
    if target.preset.transport == "websocket":
        client = LiveClient(target, timeout_s=timeout_s, word_interval_s=word_interval_s)
    else:
        client = HttpClient(target, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


async def served_models(target: Target) -> list[str]:
    """Names, as the server gives them; none where it has no such list."""
    asking = HttpClient(target, timeout_s=10)
    try:
        exchange = await asking.get("/v1/models")
        listed = json.loads(b"".join(exchange.body)) if exchange.status == 200 else {}
        return [str(model["id"]) for model in listed.get("data", [])][:20]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    finally:
        await asking.close()


@dataclass(slots=True)
class Bench:
    target: Target
    workload: Workload
    span: Span
    timeout_s: float = 120.0
    word_interval_s: float | None = None
    records: Path | None = None  # every request as a line of JSON; what stood there is replaced
    on_row: Callable[[Row], None] = lambda row: None
    served: list[str] = field(default_factory=list)  # names of models, as the server gives them

    async def run(self, loads: Sequence[Load]) -> list[Row]:
        self._begin_records()
        rows: list[Row] = []
        async with open_client(self.target, self.timeout_s, self.word_interval_s) as client:
            await self._check(client)
            for load in loads:
                rows.append(await self._row(client, load, self.span))
                if left := len(loads) - len(rows):
                    self._expect_anybody(rows[-1], f"{left} of {len(loads)} loads were not measured")
        return rows

    async def search(
        self, limits: Limits, *, first: float, most: float, resolution: float
    ) -> tuple[float | None, list[Row]]:
        self._begin_records()
        tried: list[Row] = []
        async with open_client(self.target, self.timeout_s, self.word_interval_s) as client:
            await self._check(client)

            async def holds(rate: float) -> bool:
                # A low rate needs longer: what two requests were spared is no limit held.
                span = replace(self.span, duration_s=max(self.span.duration_s, seconds_for_p95(rate)))
                row = await self._row(client, Load("open", rate), span, limits)
                tried.append(row)
                self._expect_anybody(row, "the search ends")
                return not row["limits_broken"]

            best = await search_rate(holds, first=first, most=most, resolution=resolution)
        return best, sorted(tried, key=lambda row: row["load"]["value"])

    def figures(self, rows: Sequence[Row]) -> dict[str, Any]:
        span = self.span
        length = {"duration_s": span.duration_s} if span.requests is None else {"requests": span.requests}
        return {
            "target": {**self.target.described(), "served": self.served, "word_interval_s": self.word_interval_s},
            "workload": {"name": self.workload.name, "texts": len(self.workload.texts), "seed": self.workload.seed},
            "span": {**length, "warmup_s": span.warmup_s},
            "frames": self.target.frames,
            "loads": list(rows),
        }

    async def _check(self, client: Client) -> None:
        """One request, so that a wrong address or voice is one clear line and not a table of failures."""
        answer = Judge(self.target)(await client.speak(next(self.workload.utterances("warmup"))))
        if answer.failure is not None:
            hint = "; is it running?" if answer.failure.kind == "connect" else ""
            raise OscineError(
                f"the server at {self.target.url} did not speak the first text ({answer.failure.kind}): "
                f"{answer.failure.message}{hint}"
            )
        self.served = await served_models(self.target)

    async def _row(self, client: Client, load: Load, span: Span, limits: Limits | None = None) -> Row:
        run = LoadRun(client, Judge(self.target), self.workload, load, span)
        with showing(run.progress):
            row = await run.run()
        if limits is not None:
            row["limits_broken"] = limits.broken_by(row)
        self.on_row(row)
        if self.records is not None:
            with _writing(self.records), self.records.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in self._lines(run))
        return row

    def _expect_anybody(self, row: Row, what: str) -> None:
        if not row["succeeded"] and row["failures"].keys() == {"connect"}:
            raise OscineError(f"the server at {self.target.url} cannot be reached any more; {what}")

    def _begin_records(self) -> None:
        """Before anything is sent: a path that cannot be written is better known now."""
        if self.records is not None:
            with _writing(self.records):
                self.records.write_text("")

    def _lines(self, run: LoadRun) -> Iterator[dict[str, Any]]:
        """All that is needed to find the figures again, and to ask the same once more; clocks start with the window."""
        most = 1 + max((answer.index for answer in run.answers), default=0)
        said = {
            True: list(islice(self.workload.utterances("measured"), most)),
            False: list(islice(self.workload.utterances("warmup"), most)),
        }
        for answer in run.answers:
            utterance = said[answer.measured][answer.index]
            yield {
                "load": str(run.load),
                "index": answer.index,
                "measured": answer.measured,
                "text": utterance.text,
                "seed": utterance.seed,
                "due_s": answer.due_s - run.begin_s,
                "sent_s": answer.sent_s - run.begin_s,
                "failure": answer.failure and [answer.failure.kind, answer.failure.message],
                "e2e_s": answer.e2e_s,
                "audible_s": answer.audible_s,
                "deficit_s": answer.playback and answer.playback.deficit_s,
                "arrived_s": answer.timeline and answer.timeline.arrived_s,
                "heard_s": answer.timeline and answer.timeline.heard_s,
            }


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OscineError(f"{str(path)!r} cannot be written: {error}") from None


@contextlib.contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """A line on a terminal, twice a second. Written plainly: a drawn progress bar takes milliseconds of this process at
    a time, which the streams that it measures would wait for."""
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


async def _show(progress: Progress) -> None:
    while True:
        first = progress.last_first_audio_s
        said = "" if first is None else f", first byte {first * 1e3:.0f} ms"
        sys.stderr.write(
            f"\r\x1b[2K{progress.load}: {progress.phase}, {progress.answered} of {progress.sent} answered, "
            f"{progress.in_flight} in flight, {progress.failed} failed{said}"
        )
        sys.stderr.flush()
        await asyncio.sleep(_REFRESH_S)
