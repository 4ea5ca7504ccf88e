"""Measures what Triton Inference Server costs over our own server: the same engine settings, requests and machine. Both
run at once, and the loads go to them in turns, so that a change of the machine's own load concerns both.

    python -m benchmarks.triton_overhead [--callers 1 8 32] [--way split]                       the demo voice
    python -m benchmarks.triton_overhead --size 1b7 --slots 128 --callers 1 8 32 128            random weights, a GPU

Needs a Triton server and NVIDIA's client: `make tritonserver`, then run it with .venv-tritonserver/bin/python. Random
weights never end their speech: every response has --frames frames of 80 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import POSITIONS, WEIGHTS, checkpoint
from benchmarks.results import read_arguments, save
from benchmarks.server import machine_kind
from benchmarks.server_process import serving, wait_until
from oscine.deploy.tritonserver.launch import Addresses, server_command
from oscine.deploy.tritonserver.repository import MODELS, CodecOptions, Way, write_repository
from oscine.serving.settings import Settings, load_settings
from oscine_bench.benchmark import Bench, run_async
from oscine_bench.load import OfferedLoad, RunLength
from oscine_bench.targets import Target
from oscine_bench.workload import load_workload

START_S = 600.0
SPEAKS = {"fast": "oscine", "split": "oscine_speech"}


@contextlib.contextmanager
def own_server(settings: Settings, folder: Path) -> Iterator[Target]:
    with serving(None, folder, devices=settings.devices[0], settings=settings.as_toml()) as (server, url):
        yield Target(url=url)
        server.terminate()


@contextlib.contextmanager
def triton_server(settings: Settings, folder: Path, way: Way) -> Iterator[Target]:
    write_repository(folder, settings, way, CodecOptions())
    addresses = Addresses("127.0.0.1", *_free_ports(3))
    with server_command(folder, MODELS[way], addresses) as (command, environment), open(folder / "log", "w+b") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: _ready(addresses) or server.poll() is not None, START_S)
            if server.poll() is not None:
                raise SystemExit((folder / "log").read_text(errors="replace")[-3000:])
            yield Target(url=f"triton://127.0.0.1:{addresses.grpc_port}", preset_name="triton", model=SPEAKS[way])
        finally:
            server.terminate()
            server.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _ready(addresses: Addresses) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{addresses.http_port}/v2/health/ready", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def measure(target: Target, callers: int, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one load."""
    workload = load_workload("english", [options.lengths], 0)
    target = dataclasses.replace(target, frames=options.frames)
    bench = Bench(target, workload, RunLength(options.duration, warmup_s=options.warmup), timeout_s=300.0)
    (row,) = run_async(bench.run([OfferedLoad("closed", callers)]))
    return row


def median(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of the rounds; those in which nothing succeeded have no first audio."""
    first = [row["first_audio_ms"] for row in rows if row["first_audio_ms"] is not None]
    return {
        "requests": sum(row["requests"] for row in rows),
        "succeeded": sum(row["succeeded"] for row in rows),
        "x_real_time": statistics.median(row["x_real_time"] for row in rows),
        "first_audio_ms": {name: statistics.median(one[name] for one in first) for name in ("mean", "p50", "p95")},
        "client_cpu_share": statistics.median(row["client"]["cpu_share"] for row in rows),
    }


def shown(name: str, callers: int, row: dict[str, Any]) -> str:
    first = row["first_audio_ms"]
    return (
        f"{name}, {callers} callers: {row['succeeded']} of {row['requests']}, {row['x_real_time']:.2f} x real time, "
        f"first audio {first['mean']:.1f} ms, p95 {first['p95']:.1f} ms"
    )


def engine_settings(options: argparse.Namespace) -> Settings:
    flags: dict[str, Any] = {"model": "demo", "devices": options.devices, "engine.slots": options.slots}
    if options.size is not None:
        flags |= {"model": str(checkpoint(options)), "engine.runaway.enabled": False}
        flags |= {"engine.memory.positions_per_slot": POSITIONS}
    return load_settings(None, flags)


def arguments() -> argparse.Namespace:
    options = read_arguments(
        __doc__, **WEIGHTS, frames=(int, "of 80 ms, per speech; default: 56 for random weights"), devices="auto",
        slots=32, callers=[1, 8, 32], rounds=3, way={"choices": list(SPEAKS), "default": "fast"},
        lengths=("short", "of the built-in texts: short, medium or long"),
        duration=(10.0, "seconds at each load and round"), warmup=3.0, out=Path("docs/results/triton"),
    )  # fmt: skip
    options.frames = options.frames or (None if options.size is None else 56)
    return options


def main() -> None:
    options = arguments()
    settings = engine_settings(options)
    figures: dict[str, Any] = {"way": options.way, "slots": options.slots, "model": options.size or "demo"}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        servers = {
            "own": own_server(settings, Path(scratch) / "own"),
            "triton": triton_server(settings, Path(scratch) / "triton", options.way),
        }
        targets: dict[str, Target] = {}
        for name, server in servers.items():
            begun_s = time.perf_counter()
            targets[name] = stack.enter_context(server)
            figures[name] = {"start_s": time.perf_counter() - begun_s, "loads": {}}
        for callers in options.callers:
            rows: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
            for _ in range(options.rounds):
                for name, target in targets.items():
                    rows[name].append(measure(target, callers, options))
            for name in targets:
                figures[name]["loads"][str(callers)] = median(rows[name])
                print(shown(name, callers, figures[name]["loads"][str(callers)]), flush=True)
    print(
        save(
            options.out,
            f"overhead-{options.way}-{machine_kind()}",
            figures,
            "tritonclient",
            "grpcio",
            "nvidia-pytriton",
        )
    )


if __name__ == "__main__":
    main()
