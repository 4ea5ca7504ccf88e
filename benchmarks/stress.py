"""Stress test of `oscine serve` on a CPU, with a small random checkpoint, over loopback:

overload   measures the capacity, then offers three times as much for a minute. Accepted streams have no gap, the others
           get 429 with Retry-After, and memory, threads and descriptors do not grow.
vanishing  200 clients disconnect at random moments, over HTTP and WebSocket, and leave nothing behind.
killing    kill -9 of the engine during 8 streams: every client gets a failure, and the server recovers.

    python -m benchmarks.stress [--seconds 60] [--out docs/results]

Server, engine (on one core) and client share the machine, which should be idle otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.results import read_arguments, save, stopwatch
from benchmarks.server_process import ServerProcess
from benchmarks.server_trials import (
    ENVIRONMENT,
    GAP_S,
    PATIENT,
    SETTINGS,
    Row,
    complaints_of_killing,
    complaints_of_overload,
    complaints_of_vanishing,
    fill_pools,
    killing,
    measure_capacity,
    overload,
    vanishing,
)
from random_checkpoint import write_checkpoint

Say = Callable[[str], None]


@contextmanager
def running(model: Path, settings: str = SETTINGS) -> Iterator[tuple[ServerProcess, str]]:
    with tempfile.TemporaryDirectory() as folder:
        server = ServerProcess(model, Path(folder), settings=settings, environment=ENVIRONMENT)
        try:
            yield server, server.wait_ready()
        finally:
            server.close()


def under_load(model: Path, options: argparse.Namespace, say: Say) -> tuple[Row, list[str]]:
    """Figures, and problems."""
    with running(model) as (server, url):
        fill_pools(url, options.frames)
        capacity, rows = measure_capacity(url, options.frames, 6.0, say)
        if not capacity.streams:
            sys.exit("this machine cannot sustain a single stream: it is busy or too slow")
        say(f"capacity: {capacity.streams} streams at once, {capacity.requests_per_s:.2f} requests/s")
        say(f"three times that for {options.seconds:g} s")
        overloaded = overload(server, url, 3 * capacity.requests_per_s, options.seconds, options.frames)
        say(_described(overloaded, "requests", "accepted", "refused", "streams_at_once", "x_real_time"))
        say(f"{options.clients} clients that disconnect")
        vanished = vanishing(server, url, options.clients, within_s=15.0)
        say(_described(vanished, "had_got", "metrics", "settled_after_s"))
        ended = {"exit_status": server.terminate(), "streams": (server.log_line("stopping") or {}).get("streams")}
    complaints = complaints_of_overload(overloaded) + complaints_of_vanishing(vanished)
    complaints += [f"it did not stop cleanly: {ended}"] if any(ended.values()) else []
    measured = {"capacity": {**dataclasses.asdict(capacity), "rows": rows}}
    return {**measured, "overload": overloaded, "vanishing": vanished, "end": ended}, complaints


def with_a_kill(model: Path, say: Say) -> tuple[Row, list[str]]:
    say("kill -9 of the engine during 8 streams")
    with running(model, PATIENT) as (server, url):
        row = killing(server, url)
    say(_described(row, "ends", "known_after_s", "last_client_told_after_s", "ready_after_s"))
    return {"killing": row}, complaints_of_killing(row)


def main() -> None:
    options = read_arguments(
        __doc__, seconds=(60.0, "of overload"), clients=(200, "that disconnect"),
        frames=(50, "of each stream of the overload; 80 ms each"),
    )  # fmt: skip
    load_average, say = os.getloadavg()[0], stopwatch()
    with tempfile.TemporaryDirectory() as scratch:
        say("starting the server")
        model = write_checkpoint(Path(scratch) / "small", size="0b6", kind="custom_voice", eos_gain=0.0)
        figures, complaints = under_load(model, options, say)
        more, more_complaints = with_a_kill(model, say)
    complaints += more_complaints
    stated = {"load_average_before": load_average, "gap_tolerance_ms": 1e3 * GAP_S, "environment": ENVIRONMENT}
    measured = {**stated, **figures, **more, "complaints": complaints}
    save(options.out, "server-cpu", measured, "torch", "uvicorn", "fastapi")
    say("\n".join(["problems:", *complaints]) if complaints else "no problems")
    sys.exit(bool(complaints))


def _described(row: Row, *names: str) -> str:
    return ", ".join(
        f"{name} {row[name]:.2f}" if isinstance(row[name], float) else f"{name} {row[name]}" for name in names
    )


if __name__ == "__main__":
    main()
