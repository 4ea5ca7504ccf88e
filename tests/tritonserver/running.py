"""A Triton server with the demo voice, both ways, and NVIDIA's client in a process of its own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import select
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oscine.export import export_codec_window
from tests.conftest import CACHE, require_environment

ROOT = Path(__file__).parents[2]
WAIT_S = 600.0  # only a failing test waits this long


def python() -> Path:
    return require_environment("tritonserver", "the Triton server is") / "bin" / "python"


def environment() -> dict[str, str]:
    # The server's processes import Oscine from their working folder, ROOT/src: they ignore PYTHONPATH.
    proxies = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    return {**os.environ, **proxies, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}


def exported_codec() -> Path:
    """The demo's codec as `oscine export` writes it, which takes half a minute."""
    parts = [ROOT / "src" / "oscine" / part for part in ("export", "model", "demo/speech_tokenizer")]
    files = sorted(
        file for part in parts for file in part.rglob("*") if file.suffix in (".py", ".json", ".safetensors")
    )
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    path = CACHE / "exports" / f"codec-window-{digest}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_codec_window("demo", path)  # it appears under its name when it is complete
    return path


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass(frozen=True)
class Spoken:
    """What the client got for one request."""

    samples: np.ndarray
    chunks: int
    finish_reason: str
    seed: int


class TritonServer:
    def __init__(
        self, http_port: int, grpc_port: int, metrics_port: int, client: subprocess.Popen[str], log: Path
    ) -> None:
        self._log = log
        self.http, self.grpc = f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}"
        self._metrics, self._client = f"http://127.0.0.1:{metrics_port}/metrics", client

    def ask(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        """Side by side."""
        assert self._client.stdin is not None and self._client.stdout is not None
        self._client.stdin.write(json.dumps(requests) + "\n")
        self._client.stdin.flush()
        assert select.select([self._client.stdout], [], [], WAIT_S)[0], f"no answer; the server's log:\n{self.log()}"
        answers: list[dict[str, Any]] = json.loads(self._client.stdout.readline())
        return answers

    def log(self) -> str:
        """Its end."""
        return self._log.read_text(errors="replace")[-5000:]

    def speak(self, model: str, *inputs: dict[str, Any]) -> list[Spoken]:
        """Side by side."""
        spoken = []
        for answer in self.ask(*({"model": model, "inputs": one} for one in inputs)):
            assert "error" not in answer, answer["error"]
            samples = np.frombuffer(base64.b64decode(answer["audio"]), "<i2").astype(int)
            spoken.append(Spoken(samples, answer["chunks"], answer["finish_reason"], answer["seed"]))
        return spoken

    def post(self, path: str, body: object = None) -> tuple[int, bytes]:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.http + path, data, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.http + path, timeout=WAIT_S) as answer:
                body = answer.read()
                return answer.status, json.loads(body) if body else None
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def gauge(self, name: str, model: str) -> float:
        page = urllib.request.urlopen(self._metrics, timeout=WAIT_S).read().decode()
        (line,) = [line for line in page.splitlines() if line.startswith(f"{name}{{") and f'model="{model}"' in line]
        return float(line.rpartition(" ")[2])

    def batch_sizes(self, model: str) -> dict[int, int]:
        """Executions of each batch size so far."""
        _, stats = self.get(f"/v2/models/{model}/stats")
        return {one["batch_size"]: one["compute_infer"]["count"] for one in stats["model_stats"][0]["batch_stats"]}


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition never became true"
        time.sleep(0.02)


@contextmanager
def triton_server(folder: Path, *options: str) -> Iterator[TritonServer]:
    """`oscine triton ... --run` as a user types it."""
    ports = free_ports(3)
    codec = exported_codec()
    command = [str(python()), "-m", "oscine", "triton", str(folder / "repository"), "--run", *options]
    command += ["--codec-file", str(codec)]
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        command += [f"--{name}-port", str(port)]
    with open(folder / "log", "w+b") as log:
        process = subprocess.Popen(command, cwd=ROOT / "src", env=environment(), stdout=log, stderr=log)
        client = subprocess.Popen(
            [python(), ROOT / "tests" / "tritonserver" / "client_process.py", f"127.0.0.1:{ports[1]}"],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        server = TritonServer(*ports, client, folder / "log")

        def is_ready() -> bool:
            assert process.poll() is None, server.log()
            try:
                return server.get("/v2/health/ready")[0] == 200
            except OSError:
                return False

        try:
            eventually(is_ready)
            yield server
        finally:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.close()
            client.terminate()
            client.wait(WAIT_S)
            client.stdout.close()
            process.terminate()
            process.wait(WAIT_S)
    # Otherwise a model did not end, and the server waited for it in vain.
    assert "Exit timeout expired" not in (folder / "log").read_text(errors="replace")
