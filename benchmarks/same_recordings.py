"""Whether recordings made under load equal those made alone, byte for byte: each request is sent by itself, and again
with the same seed beside others.

    python -m benchmarks.same_recordings --out docs/results [--sizes demo 1b7] [--requests 128] [--callers 64]
        [--frames 24] [--devices cuda:0] [--kernels auto]

`demo` is the demo voice, which ends its texts by itself; the published sizes have random weights and `--frames`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import random_weights
from benchmarks.results import SCRATCH, read_arguments, save
from benchmarks.server_process import serving
from oscine_bench.benchmark import open_client, run_async
from oscine_bench.exchange import BenchClient
from oscine_bench.targets import Target
from oscine_bench.workload import PlannedRequest, load_workload

# Random weights never end their speech.
SETTINGS = "[engine]\nrunaway.enabled = false\nqueue_wait_s = 600.0\n"


async def recordings(target: Target, requests: list[PlannedRequest], callers: int) -> list[bytes]:
    queue = iter(requests)
    bodies: dict[int, bytes] = {}

    async def caller(client: BenchClient) -> None:
        for request in queue:
            exchange = await client.send(request)
            assert exchange.failure is None and exchange.status == 200, exchange.failure
            bodies[request.index] = b"".join(exchange.body)

    async with open_client(target) as client:
        await asyncio.gather(*(caller(client) for _ in range(callers)))
    return [bodies[request.index] for request in requests]


def compared(alone: list[bytes], beside: list[bytes]) -> dict[str, Any]:
    equal = sum(a == b for a, b in zip(alone, beside, strict=True))
    lengths = sum(len(a) == len(b) for a, b in zip(alone, beside, strict=True))
    pairs = [(np.frombuffer(a, "<i2").astype(int), np.frombuffer(b, "<i2")) for a, b in zip(alone, beside, strict=True)]
    largest = max((int(np.abs(a - b).max(initial=0)) for a, b in pairs if len(a) == len(b)), default=0)
    return {"recordings": len(alone), "equal": equal, "of_equal_length": lengths, "largest_difference": largest}


def measure(model: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    requests = list(itertools.islice(load_workload("english", ("short", "medium")).requests(), options.requests))
    server_options = ["--slots", str(max(options.callers)), "--set", f"engine.kernels={options.kernels}"]
    with serving(model, None, *server_options, settings=SETTINGS, devices=options.devices) as (server, url):
        target = Target(url=url, frames=options.frames if model else None)
        alone = run_async(recordings(target, requests, 1))
        figures = {}
        for callers in options.callers:
            figures[str(callers)] = compared(alone, run_async(recordings(target, requests, callers)))
            found = figures[str(callers)]
            print(f"{callers} callers: {found['equal']} of {found['recordings']} recordings equal byte for byte; "
                  f"largest difference {found['largest_difference']}", flush=True)  # fmt: skip
        server.terminate()
    return figures


def main() -> None:
    options = read_arguments(
        __doc__, scratch=(SCRATCH, "checkpoints"),
        sizes={"nargs": "+", "choices": ["demo", "1b7", "0b6"], "default": ["demo", "1b7"]}, requests=128, callers=[64],
        frames=(24, "of each recording with random weights"), devices="cuda:0", kernels="auto",
    )  # fmt: skip
    figures: dict[str, Any] = {"devices": options.devices, "kernels": options.kernels}
    for size in options.sizes:
        model = None if size == "demo" else random_weights(options.scratch, size, endless=False)
        print(f"--- {size}", flush=True)
        figures[size] = measure(model, options)
        print(save(options.out, "same-recordings", figures))


if __name__ == "__main__":
    main()
