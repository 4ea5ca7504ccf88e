"""Measures the latency that the server adds to the engine: first byte of the request to first byte of the response,
minus the engine's own time.

Sequential requests to an engine process that makes its first frame at once, alternately over HTTP and directly to the
engine. The difference is the server's overhead. Loopback only.

    python -m benchmarks.overhead [--requests 300] [--out docs/results]
"""

from __future__ import annotations

import argparse
import json
import queue
import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import uvicorn

from benchmarks.instant_engine import CARD, build
from benchmarks.results import save
from oscine.engine.remote.client import EngineClient
from oscine.server.app import build_app
from oscine.types import Cancel, SpeechRequest
from oscine_bench.metrics import percentile

BODY = json.dumps({"input": "Hello there, how are you today?", "response_format": "pcm", "voice": "wren"}).encode()


def over_http(connection: socket.socket) -> float:
    head = (
        "POST /v1/audio/speech HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(BODY)}",
    )
    begun_s = time.perf_counter()
    connection.sendall("\r\n".join((*head, "", "")).encode() + BODY)
    received, first_s = b"", 0.0
    while not received.endswith(b"0\r\n\r\n"):
        received += connection.recv(65536)
        if not first_s and b"\r\n\r\n" in received and len(received.split(b"\r\n\r\n", 1)[1]) > 5:
            first_s = time.perf_counter() - begun_s
    assert received.startswith(b"HTTP/1.1 200"), received[:200]
    return first_s


def directly(engine: EngineClient) -> float:
    times: queue.SimpleQueue[float] = queue.SimpleQueue()
    begun_s = time.perf_counter()
    utterance_id = engine.submit(SpeechRequest(text="x"), lambda chunk: times.put(time.perf_counter()))
    first_s = times.get() - begun_s
    times.get()
    engine.tell(utterance_id, Cancel())
    return first_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    engine = EngineClient(build)
    engine.wait_ready(60)
    config = uvicorn.Config(build_app(engine, CARD), host="127.0.0.1", port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    connection = socket.create_connection(server.servers[0].sockets[0].getsockname())
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(30):
        over_http(connection), directly(engine)
    http_ms, engine_ms = [], []
    for done in range(arguments.requests):
        http_ms.append(1000 * over_http(connection))
        engine_ms.append(1000 * directly(engine))
        print(f"\r{done + 1}/{arguments.requests}", end="", file=sys.stderr)
    print(file=sys.stderr)
    median_ms = statistics.median(engine_ms)
    overhead_ms = [value - median_ms for value in http_ms]
    figures = {
        "requests": arguments.requests,
        "engine_first_chunk_ms": spread_ms(engine_ms),
        "http_first_byte_ms": spread_ms(http_ms),
        "overhead_ms": spread_ms(overhead_ms),
    }
    print(json.dumps(figures, indent=1))
    save(arguments.out, "overhead", figures, "uvicorn", "fastapi", "msgspec")
    engine.stop()


def spread_ms(values: list[float]) -> dict[str, float]:
    return {name: round(percentile(values, share), 3) for name, share in (("p50", 50), ("p95", 95), ("p99", 99))}


if __name__ == "__main__":
    main()
