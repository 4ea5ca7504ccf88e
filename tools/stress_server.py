"""`oscine serve` under load on a CPU, with a small random checkpoint, over loopback:

overload   what it can carry is measured; then three times as much comes for a minute. Who is let in hears no gap, the
           others get 429 with Retry-After, and afterwards there is no more memory, thread or descriptor than before.
vanishing  200 clients that vanish at random moments, over HTTP and WebSocket, leave nothing behind.
killing    kill -9 of the engine during 8 streams: every client is told, and the server serves again.

    python tools/stress_server.py [--seconds 60] [--out docs/results]

Server, engine and client share this machine's cores, so it should have nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from oscine.bench.client import HttpClient
from oscine.bench.exchange import Client, Exchange
from oscine.bench.live import LiveClient
from oscine.bench.load import Load, LoadRun, Span
from oscine.bench.metrics import spread
from oscine.bench.record import commit, machine, versions, write_result
from oscine.bench.session import run_async, showing
from oscine.bench.summary import Answer, Judge
from oscine.bench.targets import Target
from oscine.bench.workload import Utterance, Workload
from random_checkpoint import write_checkpoint
from server_process import Figures, Footprint, Footprints, ServerProcess, Starvation, fetch, wait_until
from vanishing_clients import crowd, vanish_all

GAP_S = 0.1  # what a player may wait in all: less than anybody notices, more than a busy scheduler takes
# What may be there afterwards and was not before: allocators do not give every page back.
MARGIN = Footprint(memory_mib=16.0, threads=0, descriptors=0)
SETTLE_S = 20.0
TEXT = "hello there you and the world"
# Random weights: their speech has no end. The rest is as people get it.
SETTINGS = """
[engine]
slots = 16
guard.enabled = false
memory.positions_per_slot = 1024
"""
# For the kill: nobody is sent away because this machine is slow.
PATIENT = SETTINGS + "queue_wait_s = 600.0\n"
Row = dict[str, Any]


@contextmanager
def running(model: Path, settings: str = SETTINGS) -> Iterator[tuple[ServerProcess, str]]:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(model, Path(folder), settings=settings)
        try:
            yield server, server.wait_ready()
        finally:
            server.close()


# --- overload ---


@dataclass(slots=True)
class Crowd:
    """One load from first request to last answer."""

    url: str
    frames: int
    text: str = TEXT
    answers: list[Answer] = field(default_factory=list)
    retries_s: list[float | None] = field(default_factory=list)  # Retry-After of each refusal

    def run(self, load: Load, span: Span) -> Row:
        return run_async(self._run(load, span))

    async def _run(self, load: Load, span: Span) -> Row:
        target = Target(url=self.url, frames=self.frames, extra={"trim_silence": False})
        client = HttpClient(target)
        run = LoadRun(client, Judge(target), Workload("stress", (self.text,)), load, span, keep=self._keep)
        try:
            with showing(run.progress):
                row = await run.run()
        finally:
            await client.close()
        self.answers = run.answers
        return row

    def _keep(self, exchange: Exchange) -> None:
        if exchange.status == 429:
            told = exchange.headers.get("retry-after")
            self.retries_s.append(None if told is None else float(told))

    @property
    def most_at_once(self) -> int:
        """Streams that were heard at the same time."""
        heard = [answer for answer in self.answers if answer.timeline]
        changes = [(one.sent_s + one.timeline.first_audio_s, 1) for one in heard if one.timeline]
        changes += [(one.sent_s + one.e2e_s, -1) for one in heard]
        most = now = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most


@dataclass(frozen=True, slots=True)
class Capacity:
    streams: int  # at once, without a refusal or a gap; 0: not even one
    requests_per_s: float
    x_real_time: float


def measure_capacity(url: str, frames: int, seconds: float, say: Callable[[str], None]) -> tuple[Capacity, list[Row]]:
    """More and more callers who ask again and again, until one is refused or hears a gap."""
    best, rows = Capacity(0, 0.0, 0.0), []
    for callers in range(1, 17):
        row = Crowd(url, frames).run(Load("closed", callers), Span(seconds, warmup_s=1.0))
        worst_ms = row["underruns"]["worst_deficit_ms"] or 0.0
        kept = {"callers": callers, "failures": row["failures"], "worst_gap_ms": worst_ms}
        rows.append({**kept, "x_real_time": row["x_real_time"], "requests_per_s": row["requests_per_s"]})
        say(f"{callers} at once: {row['x_real_time']:.1f} x real time, worst gap {worst_ms:.0f} ms")
        if row["failures"] or worst_ms > 1e3 * GAP_S:
            break
        best = Capacity(callers, row["requests_per_s"], row["x_real_time"])
    return best, rows


def overload(server: ServerProcess, url: str, rate_per_s: float, seconds: float, frames: int) -> Row:
    """Requests come at that rate, whatever becomes of those before."""
    settle(url)
    before, figures_before, starvation = Footprints.of(server), Figures.of(url), Starvation(server.engine_pid)
    crowd = Crowd(url, frames)
    row = crowd.run(Load("open", rate_per_s), Span(seconds, warmup_s=0))
    starved_s = starvation.longest_s()
    after = settled(server, url, before)
    counted = Figures.of(url)
    refused = [answer for answer in crowd.answers if answer.failure and answer.failure.kind == "http_429"]
    return {
        "rate_per_s": rate_per_s,
        "seconds": seconds,
        "requests": row["requests"],
        "accepted": row["succeeded"],
        "refused": len(refused),
        "other_failures": {kind: what for kind, what in row["failures"].items() if kind != "http_429"},
        "refusals_without_retry_after": crowd.retries_s.count(None),
        "retry_after_s": spread([retry_s for retry_s in crowd.retries_s if retry_s is not None]),
        "refused_after_ms": spread([answer.e2e_s for answer in refused], scale=1e3),
        "streams_at_once": crowd.most_at_once,
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
    told, worst_ms = row["metrics"]["requests_by_status"], row["underruns"]["worst_deficit_ms"] or 0.0
    checks = {
        f"answers that are neither sound nor 429: {row['other_failures']}": not row["other_failures"],
        "nobody was let in": row["accepted"] > 0,
        "nobody was refused: this was no overload": row["refused"] > 0,
        f"{row['accepted']} + {row['refused']} answers to {row['requests']} requests": row["accepted"] + row["refused"]
        == row["requests"],
        "429 without Retry-After": not row["refusals_without_retry_after"],
        f"a listener waited for {worst_ms:.0f} ms, more than {1e3 * gap_s:.0f}": worst_ms <= 1e3 * gap_s,
        f"the server counted {told}": told == {"200": row["accepted"], "429": row["refused"]},
    }
    return [what for what, holds in checks.items() if not holds] + row["grown"]


# --- clients that vanish ---


def vanishing(server: ServerProcess, url: str, count: int, within_s: float) -> Row:
    settle(url)
    before, figures_before = Footprints.of(server), Figures.of(url)
    outcomes = run_async(vanish_all(url, crowd(count, within_s), TEXT, frames=900))
    begun_s = time.monotonic()
    after = settled(server, url, before)
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
        ([f"still there: {left}"] if left else [])
        + ([f"{spoken} speeches without an end came to one"] if spoken else [])
        + row["grown"]
    )


# --- kill -9 ---


def killing(server: ServerProcess, url: str, streams: int = 8) -> Row:
    return run_async(_killing(server, url, streams))


async def _killing(server: ServerProcess, url: str, streams: int) -> Row:
    ways: tuple[Row, ...] = ({}, {"sse": True}, {"preset_name": "oscine-ws"})
    targets = [Target(url=url, frames=900, **ways[number % len(ways)]) for number in range(streams)]
    clients: list[Client] = [_client(target) for target in targets]
    speaking = [asyncio.create_task(client.speak(Utterance(TEXT, seed, seed))) for seed, client in enumerate(clients)]
    while (figures := await _figures(url))["oscine_slots_active"] < 2 or _load_of(figures) < streams:
        await asyncio.sleep(0.1)
    restarts = figures["oscine_engine_restarts_total"]
    os.kill(server.engine_pid, signal.SIGKILL)
    killed_s = time.monotonic()

    async def until(condition: Callable[[], bool]) -> float:
        await asyncio.to_thread(wait_until, condition, 120.0)
        return time.monotonic() - killed_s

    known_s = await until(lambda: fetch(url, "/ready")[0] == 503)
    exchanges = await asyncio.gather(*speaking)
    ends_s = time.monotonic() - killed_s
    ready_s = await until(lambda: fetch(url, "/ready")[0] == 200)
    for client in clients:
        await client.close()
    again = await _speak_once(Target(url=url, frames=10))
    judged = [Judge(target)(exchange) for target, exchange in zip(targets, exchanges, strict=True)]
    return {
        "streams": streams,
        "running": figures["oscine_slots_active"],
        "ends": dict(Counter(answer.failure.kind if answer.failure else "whole" for answer in judged)),
        "known_after_s": known_s,
        "last_client_told_after_s": ends_s,
        "ready_after_s": ready_s,
        "first_audio_after_s": ready_s + again.first_byte_s,
        "spoke_again": again.failure is None,
        "restarts_counted": (await _figures(url))["oscine_engine_restarts_total"] - restarts,
        "told_by_ready": (await asyncio.to_thread(fetch, url, "/ready"))[1],
    }


def complaints_of_killing(row: Row) -> list[str]:
    checks = {
        f"clients were not told clearly: {row['ends']}": set(row["ends"]) <= {"cut", "reported", "http_503"},
        "it does not speak again": row["spoke_again"],
        f"/metrics counts {row['restarts_counted']} restarts": row["restarts_counted"] == 1,
        f"/ready does not tell: {row['told_by_ready']}": "SIGKILL" in row["told_by_ready"],
    }
    return [what for what, holds in checks.items() if not holds]


def _client(target: Target) -> Client:
    return LiveClient(target) if target.preset.transport == "websocket" else HttpClient(target)


async def _speak_once(target: Target) -> Answer:
    client = _client(target)
    try:
        return Judge(target)(await client.speak(Utterance(TEXT, 0, 0)))
    finally:
        await client.close()


async def _figures(url: str) -> Figures:
    return await asyncio.to_thread(Figures.of, url)


# --- what is left ---


def _load_of(figures: Figures) -> float:
    return figures["oscine_slots_active"] + figures["oscine_queue_depth"]


def settle(url: str) -> None:
    wait_until(lambda: _load_of(Figures.of(url)) == 0, SETTLE_S)


def settled(server: ServerProcess, url: str, before: Footprints) -> Footprints:
    """What is held when nothing is to do, and no more than before where that comes true in time."""
    settle(url)
    wait_until(lambda: not Footprints.of(server).grown(before, MARGIN), SETTLE_S)
    return Footprints.of(server)


def fill_pools(url: str, frames: int) -> None:
    """Threads and buffers that come with the first requests and stay are no growth."""
    Crowd(url, frames).run(Load("closed", 64), Span(requests=128, warmup_s=0))
    run_async(vanish_all(url, crowd(30, 1.0, seed=1), TEXT, frames))
    settle(url)


def _difference(now: Figures, before: Figures, name: str) -> dict[str, int]:
    then = before.by("status", name)
    counts = {status: count - then.get(status, 0) for status, count in now.by("status", name).items()}
    return {status: count for status, count in counts.items() if count}


def _footprints(before: Footprints, after: Footprints) -> Row:
    held = {"before": dataclasses.asdict(before), "after": dataclasses.asdict(after)}
    return {**held, "grown": after.grown(before, MARGIN)}


# --- the script ---


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--clients", type=int, default=200, help="that vanish")
    parser.add_argument("--frames", type=int, default=50, help="of each stream of the overload; 80 ms each")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    begun_s = time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - begun_s:5.0f} s] {what}", flush=True)

    figures: Row = {"load_average": os.getloadavg()[0], "gap_tolerance_ms": 1e3 * GAP_S}
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        model = write_checkpoint(Path(scratch) / "small", size="0b6", kind="custom_voice", eos_gain=0.0)
        say("starting the server")
        with running(model) as (server, url):
            fill_pools(url, options.frames)
            capacity, figures["capacity_rows"] = measure_capacity(url, options.frames, 6.0, say)
            figures["capacity"] = dataclasses.asdict(capacity)
            say(f"capacity: {capacity.streams} streams at once, {capacity.requests_per_s:.2f} requests/s")
            say(f"three times that for {options.seconds:g} s")
            rate_per_s = 3 * capacity.requests_per_s
            figures["overload"] = overload(server, url, rate_per_s, options.seconds, options.frames)
            complaints += complaints_of_overload(figures["overload"])
            say(_told(figures["overload"], "requests", "accepted", "refused", "streams_at_once", "x_real_time"))
            say(f"{options.clients} clients that vanish")
            figures["vanishing"] = vanishing(server, url, options.clients, within_s=15.0)
            complaints += complaints_of_vanishing(figures["vanishing"])
            say(_told(figures["vanishing"], "had_got", "metrics", "settled_after_s"))
            figures["exit_status"] = server.terminate()
            figures["streams_left"] = (server.told("stopping") or {}).get("streams")
        say("kill -9 of the engine during 8 streams")
        with running(model, PATIENT) as (server, url):
            figures["killing"] = killing(server, url)
            complaints += complaints_of_killing(figures["killing"])
            say(_told(figures["killing"], "ends", "known_after_s", "last_client_told_after_s", "ready_after_s"))
    if figures["exit_status"] or figures["streams_left"]:
        complaints.append(f"ended with {figures['exit_status']}, {figures['streams_left']} streams left")
    figures["complaints"] = complaints
    write_result(options.out / "server-cpu.json", _result(figures))
    say("\n".join(["it does not hold:", *complaints]) if complaints else "everything holds")
    sys.exit(bool(complaints))


def _told(row: Row, *names: str) -> str:
    return ", ".join(
        f"{name} {row[name]:.2f}" if isinstance(row[name], float) else f"{name} {row[name]}" for name in names
    )


def _command(argv: list[str]) -> str:
    """As anyone can run it: where the result went is this machine's own business."""
    at = argv.index("--out") if "--out" in argv else len(argv)
    return shlex.join(["python", *argv[:at], *argv[at + 2 :]])


def _result(figures: Row) -> Row:
    packages = ("torch", "uvicorn", "fastapi")
    return {
        "name": "server-cpu",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "command": _command(sys.argv),
        "machine": machine(),
        "versions": {**versions(), **{name: metadata.version(name) for name in packages}},
        "figures": figures,
    }


if __name__ == "__main__":
    main()
