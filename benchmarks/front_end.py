"""Measures the front end alone: HTTP, planning, tokenizing, the way to the engine process and back. The engine process
builds each prompt and delivers ready-made frames, the first at once, the others in real time; no model runs.

    python -m benchmarks.front_end [--rates 1 100 300] [--streams 200 1000] [--clients 4]

Front end, engine and clients are processes of one machine with one clock. The engine writes its times into the audio,
so every request tells how long it took to the engine, to its prompt and back. --rates are short requests per second,
--streams long ones whose number is held; both arrive at random (Poisson). The front end's share of the first byte is
all of it but the engine's own part. The event loop's lag is sampled every 20 ms and includes the resolution of its
timer (1 ms). Each load is saved when it ends. One that does not end in time is cut off, and its row says so. The same
rates are also sent to a bare server (instant_engine.py): the least that the share can be on this machine. All
take two minutes where the front end keeps up.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks.instant_engine import FRAME_BYTES, STAMPS, build_with_prompts, frames_after_chunks, serve_bare
from benchmarks.piped_server import PipedServer, piped_server, serve_app
from benchmarks.report_sections import busy_before, front_end_table
from benchmarks.results import read_arguments, save
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.config import ServerConfig
from oscine.engine.remote.client import EngineClient
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.server.app import build_app
from oscine.server.http.metrics import watch_loop_lag
from oscine.server.web_server import WebServer
from oscine_bench.benchmark import open_client, run_async
from oscine_bench.exchange import Exchange
from oscine_bench.load import LoadRun, OfferedLoad, RunLength
from oscine_bench.metrics import spread
from oscine_bench.search import seconds_for_p95
from oscine_bench.targets import Target
from oscine_bench.workload import load_workload

START_S = 120.0
WARMUP_S = 1.0
GRACE_S = 10.0  # for a load that ends late
IDLE_S = 1.0
MIN_TIMES_IDLE = 3  # what a load's share of a core must be, to tell what its requests add to that of an idle process
PARTS = ("to_engine", "prompt", "engine", "back")  # of the first byte
Row = dict[str, Any]
_T = TypeVar("_T")


# --- the front end, in a process of its own ---


class LagWatchingServer(WebServer):
    lags_s: ClassVar[list[float]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watching = asyncio.get_running_loop().create_task(watch_loop_lag(self.lags_s.append))


def serve(pipe: Pipe, model: str) -> None:
    """Answers with what the processes have used so far, and with the lags since the last answer."""
    with EngineClient(partial(build_with_prompts, model, 1.0)) as engine:
        engine.wait_ready(START_S)
        (worker,) = psutil.Process().children()

        def used() -> Row:
            lags_s, LagWatchingServer.lags_s[:] = list(LagWatchingServer.lags_s), []
            times = worker.cpu_times()
            engine_s = float(times.user + times.system)
            now = {"at_s": time.perf_counter(), "front_end_s": time.process_time(), "engine_s": engine_s}
            return {**now, "lags_s": lags_s}

        card = read_config(find_checkpoint(model)).card("instant")
        config = ServerConfig(connections_per_address=ServerConfig().max_connections)  # all clients have one address
        serve_app(pipe, build_app(engine, card, config, health=lambda: engine.health), used, LagWatchingServer)


@dataclass(frozen=True, slots=True)
class Used:
    """The use of one core between two answers."""

    took_s: float
    front_end_s: float
    engine_s: float
    lags_s: list[float]

    @classmethod
    def during(cls, server: PipedServer, work: Callable[[], _T]) -> tuple[Used, _T]:
        before = server.ask()
        done = work()
        after = server.ask()
        took_s, front_end_s, engine_s = (after[name] - before[name] for name in ("at_s", "front_end_s", "engine_s"))
        return cls(took_s, front_end_s, engine_s, after["lags_s"]), done

    @property
    def front_end_share(self) -> float:
        return self.front_end_s / self.took_s


# --- the clients, each in a process of its own ---


@dataclass(frozen=True, slots=True)
class Share:
    """One client's part of a load."""

    url: str
    rate_per_s: float
    frames: int
    length: RunLength
    seed: int


@dataclass(slots=True)
class Stamps:
    """Seconds of each part of the first byte, and from the engine to the client for every chunk."""

    parts_s: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    chunks_s: list[float] = field(default_factory=list)

    def __call__(self, exchange: Exchange) -> None:
        if exchange.failure is not None or exchange.request.phase != "measured":
            return
        body, reads = b"".join(exchange.body), np.frombuffer(exchange.body_bytes, np.int64)
        ends = np.array([*frames_after_chunks(len(body) // FRAME_BYTES)]) * FRAME_BYTES
        stamps = np.array([STAMPS.unpack_from(body, offset) for offset in (0, *ends[:-1].tolist())])
        self.chunks_s += (np.frombuffer(exchange.arrived_s)[np.searchsorted(reads, ends)] - stamps[:, 2]).tolist()
        times_s = (exchange.sent_s, *stamps[0].tolist(), exchange.arrived_s[0])
        for part, seconds in zip(PARTS, np.diff(times_s).tolist(), strict=True):
            self.parts_s[part].append(seconds)


async def measure_share(share: Share) -> Row:
    target = Target(url=share.url, frames=share.frames)
    stamps = Stamps()
    async with open_client(target) as client:
        workload = load_workload("english", ["short"], share.seed)
        run = LoadRun(client, target, workload, OfferedLoad("open", share.rate_per_s), share.length, keep=stamps)
        row = await run.run()
        kept = {name: row[name] for name in ("requests", "succeeded", "failures", "peak_in_flight", "client")}
        kept["unfinished"] = run.unfinished
        return {**kept, "sent": run.progress.sent, "parts_s": stamps.parts_s, "chunks_s": stamps.chunks_s}


def run_share(share: Share) -> Row:
    return run_async(measure_share(share))


# --- one load ---


def joined_failures(of_clients: Sequence[dict[str, Row]]) -> dict[str, Row]:
    """Count and first message of each kind."""
    joined: dict[str, Row] = {}
    for failures in of_clients:
        for kind, row in failures.items():
            count = joined.get(kind, {"count": 0})["count"] + row["count"]
            joined[kind] = {"first": row["first"], **joined.get(kind, {}), "count": count}
    return joined


def cpu_us_per_request(used: Used, idle_share: float, sent: int) -> float | None:
    """Returns None if an idle process uses nearly as much."""
    if not sent or used.front_end_share < MIN_TIMES_IDLE * idle_share:
        return None
    return 1e6 * (used.front_end_share - idle_share) * used.took_s / sent


def answered(rows: Sequence[Row]) -> Row:
    """What all clients got together, and how long it took."""
    parts_s = {part: [value for row in rows for value in row["parts_s"][part]] for part in PARTS}
    every = np.array([parts_s[part] for part in PARTS])
    return {
        "unfinished": sum(row["unfinished"] for row in rows),
        "requests": sum(row["requests"] for row in rows),
        "succeeded": sum(row["succeeded"] for row in rows),
        "failures": joined_failures([row["failures"] for row in rows]),
        "peak_streams": sum(row["peak_in_flight"] for row in rows),
        "first_byte_ms": spread(every.sum(axis=0).tolist(), scale=1e3),
        "front_end_ms": spread((every.sum(axis=0) - every[PARTS.index("engine")]).tolist(), scale=1e3),
        "parts_ms": {part: spread(values, scale=1e3) for part, values in parts_s.items()},
        "chunk_ms": spread([value for row in rows for value in row["chunks_s"]], scale=1e3),
    }


def measure(server: PipedServer, clients: ProcessPoolExecutor, shares: Sequence[Share], idle_share: float) -> Row:
    used, rows = Used.during(server, lambda: list(clients.map(run_share, shares)))
    sent = sum(row["sent"] for row in rows)
    client_lags_ms = [row["client"]["loop_lag_ms"]["p99"] for row in rows if row["client"]["loop_lag_ms"]]
    return {
        **answered(rows),
        "took_s": used.took_s,
        "loop_lag_ms": spread(used.lags_s, scale=1e3),
        # Of one core, warm-up included.
        "front_end_cpu_share": used.front_end_share,
        "engine_cpu_share": used.engine_s / used.took_s,
        "front_end_cpu_us_per_request": cpu_us_per_request(used, idle_share, sent),
        "client": {
            "cpu_share": max(row["client"]["cpu_share"] for row in rows),
            "loop_lag_p99_ms": max(client_lags_ms, default=None),
        },
    }


def shares_of(url: str, options: argparse.Namespace, rate_per_s: float, frames: int) -> list[Share]:
    """The load in equal parts; a low rate needs only one client, and more time."""
    clients = max(1, min(options.clients, int(rate_per_s // 10)))
    warmup_s = WARMUP_S + frames / FRAME_RATE_HZ  # until as many streams end as begin
    seconds = max(options.seconds, seconds_for_p95(rate_per_s))
    max_s = warmup_s + seconds + frames / FRAME_RATE_HZ + GRACE_S
    length = RunLength(seconds, warmup_s=warmup_s, max_s=max_s)
    return [Share(url, rate_per_s / clients, frames, length, seed) for seed in range(clients)]


def load_name(rate_per_s: float) -> str:
    return f"{rate_per_s:g} requests/s"


def measure_bare(options: argparse.Namespace, clients: ProcessPoolExecutor) -> Row:
    """The rates against a bare server."""
    with piped_server(serve_bare) as server:
        loads = {load_name(rate): shares_of(server.url, options, rate, options.frames) for rate in options.rates}
        rows = {name: answered(list(clients.map(run_share, shares))) for name, shares in loads.items()}
    for name, row in rows.items():
        assert row["succeeded"] == row["requests"] and not row["unfinished"], (name, row["failures"])
    return rows


def machine_load(say: Callable[[str], None]) -> Row:
    """Says so if other work may disturb the measurement."""
    figures = {"cores": os.cpu_count() or 1, "load_average_before": os.getloadavg()[0]}
    if busy_before(figures):
        average, cores = figures["load_average_before"], figures["cores"]
        say(f"warning: the machine is busy (load average {average:.1f} on {cores} cores); times may be too long")
    return figures


def measure_all(
    options: argparse.Namespace, say: Callable[[str], None] = print, keep: Callable[[Row], object] = lambda row: None
) -> Row:
    """`keep` gets the figures so far before and after each load; a row without figures is one that has not ended."""
    long_s = options.stream_frames / FRAME_RATE_HZ
    loads = [(load_name(rate), rate, options.frames) for rate in options.rates]
    loads += [(f"{count} streams", count / long_s, options.stream_frames) for count in options.streams]
    figures: Row = {**machine_load(say), "loads": {}}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.clients, context) as clients:
        figures["bare"] = measure_bare(options, clients)
        with piped_server(serve, options.model) as server:
            idle, _ = Used.during(server, partial(time.sleep, IDLE_S))
            figures["idle_cpu_share"] = idle.front_end_share
            for name, rate_per_s, frames in loads:
                shares = shares_of(server.url, options, rate_per_s, frames)
                figures["loads"][name] = about = {"rate_per_s": rate_per_s, "frames": frames, "clients": len(shares)}
                keep(figures)
                row = measure(server, clients, shares, idle.front_end_share)
                figures["loads"][name] = {**about, **row}
                keep(figures)
                late = f", {row['unfinished']} cut off after {row['took_s']:.0f} s" if row["unfinished"] else ""
                failures = ", ".join(f"{one['count']} {kind}" for kind, one in row["failures"].items())
                say(f"{name}: {row['succeeded']} of {row['requests']}, failures {failures or 'none'}{late}")
    return figures


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    return read_arguments(
        __doc__, words, rates={"nargs": "*", "type": float, "default": [1, 100, 300], "help": "requests per second"},
        streams={"nargs": "*", "type": int, "default": [200, 1000], "help": "held at once"},
        frames=(13, "of 80 ms, of the requests of --rates"), stream_frames=(75, "of the requests of --streams"),
        seconds=(5.0, "of each load; longer at low rates"), clients=(max(1, (os.cpu_count() or 1) // 4), "processes"),
        model=("demo", "whose tokenizer builds the prompts: a folder, a hub id or demo"),
    )  # fmt: skip


def main() -> None:
    options = arguments()

    def keep(figures: Row) -> Path:
        return save(options.out, "front-end", figures, "uvicorn", "fastapi", "msgspec")

    figures = measure_all(options, partial(print, flush=True), keep)
    print(front_end_table(figures["loads"], figures["bare"]))
    print(keep(figures))


if __name__ == "__main__":
    main()
