"""Trials of `oscine serve` over loopback, for soak.py and tests:

overload   an open loop above the capacity. Accepted streams have no gap, the others get 429 with Retry-After, and
           memory, threads and descriptors do not grow.
vanishing  clients disconnect at random moments, over HTTP and WebSocket, and leave nothing behind.
killing    kill -9 of the engine during 8 streams: every client gets a failure, and the server recovers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.server_process import Figures, Footprint, Footprints, ServerProcess, Starvation, fetch, wait_until
from benchmarks.soak_clients import draw_clients, vanish_all
from oscine_bench.benchmark import open_client, progress_line, run_async
from oscine_bench.exchange import Exchange
from oscine_bench.load import LoadRun, OfferedLoad, RunLength
from oscine_bench.metrics import spread
from oscine_bench.summary import RequestOutcome, analyze, peak_overlap
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest, Workload

GAP_S = 0.1  # largest playback deficit: below what a listener notices, above the delays of a busy scheduler
# Growth that is not a leak: allocators keep some pages, and a pool may start threads that the warm-up did not need. A
# leak of every stream would be a multiple of this.
MARGIN = Footprint(memory_mib=16.0, threads=4, descriptors=0)
SETTLE_S = 20.0
HANG_UP_S = 0.3  # until the connection of the /metrics request is closed, too
FRAMES_BEFORE_KILL = 150  # by then every stream that the engine can sustain has started
TEXT = "hello there you and the world"
# Random weights never end their speech. The other settings are the defaults.
SETTINGS = """
[engine]
slots = 8
runaway.enabled = false
memory.positions_per_slot = 1024
"""
# For the kill: a slow machine must not refuse requests.
PATIENT = SETTINGS + "queue_wait_s = 600.0\n"
# The engine computes on one core; server and client need the other. A tick split over two cores takes four times as
# long when one of them is busy.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
Row = dict[str, Any]


# --- overload ---


@dataclass(slots=True)
class StressLoad:
    """One load from the first request to the last response."""

    url: str
    frames: int
    text: str = TEXT
    outcomes: list[RequestOutcome] = field(default_factory=list)
    retries_s: list[float | None] = field(default_factory=list)  # Retry-After of each refusal

    def run(self, load: OfferedLoad, length: RunLength) -> Row:
        return run_async(self._run(load, length))

    async def _run(self, load: OfferedLoad, length: RunLength) -> Row:
        target = Target(url=self.url, frames=self.frames, extra={"trim_silence": False})
        async with open_client(target) as client:
            run = LoadRun(client, target, Workload("stress", (self.text,)), load, length, keep=self._keep)
            with progress_line(run.progress):
                row = await run.run()
        self.outcomes = run.outcomes
        return row

    def _keep(self, exchange: Exchange) -> None:
        if exchange.status == 429:
            stated = exchange.headers.get("retry-after")
            self.retries_s.append(None if stated is None else float(stated))

    @property
    def max_at_once(self) -> int:
        """Streams that delivered audio at the same time."""
        return peak_overlap(
            [(one.sent_s + one.timeline.first_audio_s, one.end_s) for one in self.outcomes if one.timeline]
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    streams: int  # at once without a gap; 0: not even one
    requests_per_s: float
    x_real_time: float


def measure_capacity(url: str, frames: int, seconds: float, say: Callable[[str], None]) -> tuple[Capacity, list[Row]]:
    """Adds callers until one has to wait, is refused or has a gap."""
    best, rows = Capacity(0, 0.0, 0.0), []
    for callers in range(1, 17):
        crowd = StressLoad(url, frames)
        row = crowd.run(OfferedLoad("closed", callers), RunLength(seconds, warmup_s=1.0))
        worst_ms = row["underruns"]["worst_deficit_ms"] or 0.0
        reached = Capacity(crowd.max_at_once, row["requests_per_s"], row["x_real_time"])
        failures = {kind: failure["count"] for kind, failure in row["failures"].items()}
        kept = {"callers": callers, "failures": failures, "worst_gap_ms": worst_ms}
        rows.append({**kept, **dataclasses.asdict(reached)})
        speed = f"{reached.x_real_time:.1f} x real time"
        say(f"{callers} callers: {reached.streams} streams at once, {speed}, worst gap {worst_ms:.0f} ms")
        if worst_ms <= 1e3 * GAP_S and reached.x_real_time > best.x_real_time:
            best = reached
        if failures or worst_ms > 1e3 * GAP_S or reached.streams < callers:
            break
    return best, rows


def overload(server: ServerProcess, url: str, rate_per_s: float, seconds: float, frames: int) -> Row:
    """An open loop at that rate."""
    before, figures_before = held_when_idle(server, url), Figures.of(url)
    starvation = Starvation(server.engine_pid)
    crowd = StressLoad(url, frames)
    row = crowd.run(OfferedLoad("open", rate_per_s), RunLength(seconds, warmup_s=0))
    starved_s = starvation.longest_s()
    after = held_when_idle(server, url, before)
    counted = Figures.of(url)
    refused = [one for one in crowd.outcomes if one.failure and one.failure.kind == "http_429"]
    return {
        "rate_per_s": rate_per_s,
        "seconds": seconds,
        "requests": row["requests"],
        "accepted": row["succeeded"],
        "refused": len(refused),
        "other_failures": {kind: what for kind, what in row["failures"].items() if kind != "http_429"},
        "refusals_without_retry_after": crowd.retries_s.count(None),
        "retry_after_s": spread([retry_s for retry_s in crowd.retries_s if retry_s is not None]),
        "refused_after_ms": spread([one.e2e_s for one in refused], scale=1e3),
        "streams_at_once": crowd.max_at_once,
        "x_real_time": row["x_real_time"],
        "first_audio_ms": row["first_audio_ms"],
        "underruns": row["underruns"],
        "engine_starved_s": starved_s,
        "client": row["client"],
        "metrics": {
            "requests_by_status": _difference(counted, figures_before, "oscine_requests_total"),
            "underruns": counted["oscine_underruns_total"] - figures_before["oscine_underruns_total"],
        },
        **_footprints(before, after),
    }


def complaints_of_overload(row: Row, gap_s: float = GAP_S) -> list[str]:
    counted, worst_ms = row["metrics"]["requests_by_status"], row["underruns"]["worst_deficit_ms"] or 0.0
    total = row["accepted"] + row["refused"]
    checks = {
        f"responses that are neither audio nor 429: {row['other_failures']}": not row["other_failures"],
        "no request was accepted": row["accepted"] > 0,
        "no request was refused: this was no overload": row["refused"] > 0,
        f"{total} responses to {row['requests']} requests": total == row["requests"],
        "429 without Retry-After": not row["refusals_without_retry_after"],
        f"playback deficit of {worst_ms:.0f} ms, above {1e3 * gap_s:.0f}": worst_ms <= 1e3 * gap_s,
        "a playback deficit that the engine did not count": worst_ms <= 1e3 * gap_s or row["metrics"]["underruns"] > 0,
        f"the server counted {counted}": counted == {"200": row["accepted"], "429": row["refused"]},
    }
    return [problem for problem, holds in checks.items() if not holds] + row["grown"]


# --- clients that vanish ---


def vanishing(server: ServerProcess, url: str, count: int, within_s: float) -> Row:
    before, figures_before = held_when_idle(server, url), Figures.of(url)
    outcomes = run_async(vanish_all(url, draw_clients(count, within_s), TEXT, frames=900))
    begun_s = time.monotonic()
    after = held_when_idle(server, url, before)
    settled_s = time.monotonic() - begun_s
    counted = Figures.of(url)
    return {
        "clients": count,
        "within_s": within_s,
        "had_got": dict(outcomes),
        "settled_after_s": settled_s,
        "slots_active": counted["oscine_slots_active"],
        "queued": counted["oscine_queue_depth"],
        "metrics": {"requests_by_status": _difference(counted, figures_before, "oscine_requests_total")},
        **_footprints(before, after),
    }


def complaints_of_vanishing(row: Row) -> list[str]:
    left = {name: row[name] for name in ("slots_active", "queued") if row[name]}
    spoken = row["metrics"]["requests_by_status"].get("200", 0)
    return (
        ([f"still active: {left}"] if left else [])
        + ([f"{spoken} endless requests completed"] if spoken else [])
        + row["grown"]
    )


# --- kill -9 ---


def killing(server: ServerProcess, url: str, streams: int = 8) -> Row:
    return run_async(_killing(server, url, streams))


async def _killing(server: ServerProcess, url: str, streams: int) -> Row:
    ways: tuple[Row, ...] = ({}, {"sse": True}, {"preset_name": "oscine-ws"})
    targets = [Target(url=url, frames=900, **ways[number % len(ways)]) for number in range(streams)]
    before = await _figures(url)
    speaking = [asyncio.create_task(_speak(target, seed)) for seed, target in enumerate(targets)]
    # How many of them run and how many are queued depends on the speed of the machine.
    frames = before["oscine_frames_total"] + FRAMES_BEFORE_KILL
    while _load_of(figures := await _figures(url)) < streams or figures["oscine_frames_total"] < frames:
        await asyncio.sleep(0.1)
    os.kill(server.engine_pid, signal.SIGKILL)
    killed_s = time.monotonic()

    async def until(condition: Callable[[], bool]) -> float:
        await asyncio.to_thread(wait_until, condition, 120.0)
        return time.monotonic() - killed_s

    known_s = await until(lambda: fetch(url, "/ready")[0] == 503)
    exchanges = await asyncio.gather(*speaking)
    ends_s = time.monotonic() - killed_s
    ready_s = await until(lambda: fetch(url, "/ready")[0] == 200)
    last = Target(url=url, frames=10)
    again = analyze(await _speak(last), last)
    outcomes = [analyze(exchange, target) for target, exchange in zip(targets, exchanges, strict=True)]
    return {
        "streams": streams,
        "running": figures["oscine_slots_active"],
        "ends": dict(Counter(one.failure.kind if one.failure else "complete" for one in outcomes)),
        "known_after_s": known_s,
        "last_client_told_after_s": ends_s,
        "ready_after_s": ready_s,
        "first_audio_after_s": None if again.failure else ready_s + again.first_byte_s,
        "restarts_counted": (await _figures(url))["oscine_engine_restarts_total"]
        - before["oscine_engine_restarts_total"],
        "told_by_ready": (await asyncio.to_thread(fetch, url, "/ready"))[1],
    }


def complaints_of_killing(row: Row) -> list[str]:
    checks = {
        f"clients got no clear failure: {row['ends']}": set(row["ends"]) <= {"cut", "reported", "http_503"},
        "it did not recover": row["first_audio_after_s"] is not None,
        f"/metrics counts {row['restarts_counted']} restarts": row["restarts_counted"] == 1,
        f"/ready does not name the cause: {row['told_by_ready']}": "SIGKILL" in row["told_by_ready"],
    }
    return [problem for problem, holds in checks.items() if not holds]


async def _speak(target: Target, seed: int = 0) -> Exchange:
    async with open_client(target) as client:
        return await client.send(PlannedRequest(TEXT, seed, seed))


async def _figures(url: str) -> Figures:
    return await asyncio.to_thread(Figures.of, url)


# --- resources afterwards ---


def _load_of(figures: Figures) -> float:
    return figures["oscine_slots_active"] + figures["oscine_queue_depth"]


def settle(url: str) -> None:
    wait_until(lambda: _load_of(Figures.of(url)) == 0, SETTLE_S)


def held_when_idle(server: ServerProcess, url: str, before: Footprints | None = None) -> Footprints:
    """Resources of the idle server. With `before`, waits until they have shrunk back, for a limited time."""
    settle(url)
    time.sleep(HANG_UP_S)
    if before is not None:
        wait_until(lambda: not Footprints.of(server).grown(before, MARGIN), SETTLE_S)
    return Footprints.of(server)


def fill_pools(url: str, frames: int) -> Row:
    """Makes pools allocate threads and buffers, so that they do not count as growth. Returns the burst's row."""
    row = StressLoad(url, frames).run(OfferedLoad("closed", 64), RunLength(requests=128, warmup_s=0))
    run_async(vanish_all(url, draw_clients(30, 1.0, seed=1), TEXT, frames))
    settle(url)
    return row


def _difference(now: Figures, before: Figures, name: str) -> dict[str, int]:
    then = before.by("status", name)
    counts = {status: count - then.get(status, 0) for status, count in now.by("status", name).items()}
    return {status: count for status, count in counts.items() if count}


def _footprints(before: Footprints, after: Footprints) -> Row:
    held = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
    return {**held, "grown": after.grown(before, MARGIN)}
