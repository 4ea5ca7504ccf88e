"""Measures the error of the bench client. A scripted server in its own process sends real-time streams and writes the
time of sending into every chunk; under full load, the client compares it with its own stamps.

    python -m benchmarks.client_selftest [--rate 100] [--seconds 5] [--duration 20]

At 100 requests/s of 5 s each, 500 streams are open at once and 6,250 chunks arrive every second.
"""

from __future__ import annotations

import asyncio
import json
import time
from multiprocessing.connection import Connection as Pipe
from typing import Any

import numpy as np

from benchmarks.instant_engine import Client
from benchmarks.piped_server import piped_server
from benchmarks.results import read_arguments
from oscine_bench.benchmark import open_client, run_async
from oscine_bench.exchange import Exchange
from oscine_bench.load import LoadRun, OfferedLoad, RunLength
from oscine_bench.metrics import spread
from oscine_bench.targets import Target
from oscine_bench.workload import load_workload

CHUNK_S = 0.08
CHUNK_BYTES = 3840
FIRST_S = 0.020  # from the request to the first chunk; the second comes with it, so that no player runs dry
NOISE = np.random.default_rng(0).integers(-8000, 8000, CHUNK_BYTES // 2 - 4).astype("<i2").tobytes()


def stamped_chunk() -> bytes:
    return b"%x\r\n" % CHUNK_BYTES + time.perf_counter_ns().to_bytes(8, "little") + NOISE + b"\r\n"


class ScriptedServer:
    """Sends chunk n at FIRST_S + max(0, n - 1) * CHUNK_S after the request."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks

    def ask(self, body: bytes, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time() + FIRST_S
        loop.call_at(begin_s, self._send, client, 0, begin_s)

    def _send(self, client: asyncio.Transport, index: int, begin_s: float) -> None:
        if client.is_closing():
            return
        client.write(stamped_chunk())
        index += 1
        if index == self._chunks:
            client.write(b"0\r\n\r\n")
        elif index == 1:
            self._send(client, index, begin_s)
        else:
            asyncio.get_running_loop().call_at(begin_s + (index - 1) * CHUNK_S, self._send, client, index, begin_s)


def serve(pipe: Pipe, chunks: int) -> None:
    async def main() -> None:
        loop, stopped, script = asyncio.get_running_loop(), asyncio.Event(), ScriptedServer(chunks)
        loop.add_reader(pipe.fileno(), stopped.set)
        server = await loop.create_server(lambda: Client(script), "127.0.0.1", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await stopped.wait()

    run_async(main())


class Delays:
    """Seconds from the server's stamp in a chunk to the client's stamp of the read that completed it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, exchange: Exchange) -> None:
        if exchange.failure is None and exchange.request.phase == "measured":
            body = np.frombuffer(b"".join(exchange.body), np.uint8).reshape(-1, CHUNK_BYTES)
            sent_s = np.ascontiguousarray(body[:, :8]).view("<i8")[:, 0] / 1e9
            ends = np.arange(1, len(body) + 1) * CHUNK_BYTES
            reads = np.searchsorted(np.frombuffer(exchange.body_bytes, np.int64), ends)
            self.seconds += (np.frombuffer(exchange.arrived_s)[reads] - sent_s).tolist()


async def measure(url: str, load: OfferedLoad, length: RunLength) -> dict[str, Any]:
    target = Target(url=url)
    delays = Delays()
    async with open_client(target, timeout_s=60) as client:
        row = await LoadRun(client, target, load_workload("english"), load, length, keep=delays).run()
    row.pop("timelines")
    return {"delay_ms": spread(delays.seconds, scale=1e3), "chunks": len(delays.seconds), **row}


def main() -> None:
    options = read_arguments(
        __doc__, rate=100.0, seconds=(5.0, "of audio in each response"), duration=20.0, json=(False, "every figure"),
    )  # fmt: skip
    chunks, loaded = round(options.seconds / CHUNK_S), RunLength(options.duration, warmup_s=options.seconds + 1)
    with piped_server(serve, chunks) as server:
        alone = run_async(measure(server.url, OfferedLoad("closed", 1), RunLength(requests=2, warmup_s=0)))
        many = run_async(measure(server.url, OfferedLoad("open", options.rate), loaded))
    rows = {"one stream": alone, f"{options.rate:g} requests/s": many}
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"script: first audio {FIRST_S * 1e3:g} ms, {chunks} chunks of {CHUNK_S * 1e3:g} ms, no underruns")
    for name, row in rows.items():
        print(f"{name}: {row['requests']} requests, {row['peak_in_flight']} open at once, {row['chunks']} chunks")
        for figure in ("delay_ms", "first_audio_ms", "send_lag_ms"):
            print(f"  {figure}: " + ", ".join(f"{key} {value:.2f}" for key, value in row[figure].items()))
        lag, worst_ms = row["client"]["loop_lag_ms"], row["underruns"]["worst_deficit_ms"]
        shares = ", ".join(f"{key} {value:.1%}" for key, value in row["client"].items() if isinstance(value, float))
        print(f"  client: {shares}, event loop late by p50 {lag['p50']:.2f}, p99 {lag['p99']:.2f} ms")
        print(
            f"  x real time {row['x_real_time']:.1f}, underruns {row['underruns']['requests']}, worst {worst_ms:.1f} ms"
        )
        print(f"  failures: {row['failures'] or 'none'}")


if __name__ == "__main__":
    main()
