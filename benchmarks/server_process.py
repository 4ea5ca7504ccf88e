"""Runs `oscine serve` as a separate process: starts it, reads its log and metrics, stops it. For tests, stress.py and
server.py."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped]

START_S = 600.0  # a process that has ended is noticed at once
IMPORTS = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # for processes that import what this one does
_POLL_S = 0.02
_WORKER = "oscine.engine.remote.worker"  # in the command of the engine's process
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def wait_until(condition: Callable[[], bool], within_s: float) -> bool:
    """Polls until the condition is true. False if time is up."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


class ServerProcess:
    """`oscine serve` on a free loopback port, by default on the CPU. `settings` is the content of its TOML file.
    Without a `model` it serves the demo voice."""

    def __init__(
        self,
        model: Path | None,
        folder: Path,
        *options: str,
        settings: str = "",
        environment: Mapping[str, str] | None = None,  # added to this process's
        devices: str = "cpu",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "oscine.toml"
        file.write_text(settings)
        command = [sys.executable, "-c", "from oscine.commands.main import main; main()", "serve"]
        command += ["--model", str(model)] if model else []
        command += ["--port", "0", "--config", str(file), "--log-format", "json"]
        command += ["--voices-dir", str(folder / "voices"), "--devices", devices, *options]
        variables = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.lines.append(json.loads(line))
            except json.JSONDecodeError:
                self.lines.append({"message": line.rstrip()})

    def log_line(self, message: str) -> dict[str, Any] | None:
        return next((line for line in list(self.lines) if line["message"] == message), None)

    def wait_ready(self, within_s: float = START_S) -> str:
        """The server's address."""
        wait_until(lambda: self.log_line("ready") is not None or self.process.poll() is not None, within_s)
        ready = self.log_line("ready")
        assert ready is not None, self.lines[-20:]
        return str(ready["url"])

    @property
    def engine_pid(self) -> int:
        """Other children decode clips."""
        children = psutil.Process(self.process.pid).children()
        (engine,) = [child for child in children if any(_WORKER in word for word in child.cmdline())]
        return int(engine.pid)

    def terminate(self, within_s: float = 30.0) -> int:
        """Stops the server with SIGTERM and returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within_s)

    def close(self) -> None:
        """Kills the server if it still runs, and releases its resources."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextlib.contextmanager
def serving(
    model: Path | None, folder: Path | None = None, *options: str, within_s: float = START_S, **more: Any
) -> Iterator[tuple[ServerProcess, str]]:
    """A server that is ready, and its address; by default in a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        server = ServerProcess(model, folder or Path(scratch), *options, **more)
        try:
            yield server, server.wait_ready(within_s)
        finally:
            server.close()


# --- resources of its processes ---


@dataclass(frozen=True, slots=True)
class Footprint:
    memory_mib: float  # resident
    threads: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        process = psutil.Process(pid)
        with process.oneshot():
            memory_mib = process.memory_info().rss / 2**20
            return cls(round(memory_mib, 1), process.num_threads(), process.num_fds())


@dataclass(frozen=True, slots=True)
class Footprints:
    front_end: Footprint
    engine: Footprint

    @classmethod
    def of(cls, server: ServerProcess) -> Footprints:
        return cls(Footprint.of(server.process.pid), Footprint.of(server.engine_pid))

    def grown(self, before: Footprints, margin: Footprint) -> list[str]:
        """Resources that grew by more than the margin."""
        return [
            f"{part} {name}: {then:g} before, {now:g} now"
            for part in ("front_end", "engine")
            for name, then in dataclasses.asdict(getattr(before, part)).items()
            if (now := getattr(getattr(self, part), name)) > then + getattr(margin, name)
        ]


class Starvation:
    """How long a process waits for a core from now on (Linux): delays that it did not cause."""

    def __init__(self, pid: int) -> None:
        self._tasks = Path(f"/proc/{pid}/task")
        self._before_s = self._waits_s()

    def _waits_s(self) -> dict[str, float]:
        waits_s = {}
        for task in self._tasks.iterdir() if self._tasks.exists() else ():
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended
                waits_s[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        return waits_s

    def longest_s(self) -> float:
        """Wait of the thread that waited longest; 0 if the system does not report it."""
        return max((now_s - self._before_s.get(task, 0.0) for task, now_s in self._waits_s().items()), default=0.0)


# --- its metrics ---


def fetch(
    url: str, path: str, body: bytes | None = None, kind: str = "application/json", method: str = ""
) -> tuple[int, str]:
    """Status and answer, over a new connection without a proxy."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        headers = {"content-type": kind} if body is not None else {}
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of the body was read
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def form(fields: Mapping[str, str], clip: bytes = b"") -> tuple[bytes, str]:
    """The body of an upload, and its content type."""
    mark = secrets.token_hex(16)
    parts = [f'name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    if clip:
        parts.append(b'name="audio_sample"; filename="clip.wav"\r\ncontent-type: audio/wav\r\n\r\n' + clip)
    body = b"".join(b"--%s\r\ncontent-disposition: form-data; %s\r\n" % (mark.encode(), part) for part in parts)
    return body + f"--{mark}--\r\n".encode(), f"multipart/form-data; boundary={mark}"


class Figures:
    """Samples of /metrics."""

    def __init__(self, page: str) -> None:
        found = _SAMPLE.findall(page)
        self._samples = [(name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in found]

    @classmethod
    def of(cls, url: str) -> Figures:
        return cls(fetch(url, "/metrics")[1])

    def __getitem__(self, name: str) -> float:
        """Sum over all labels."""
        return sum(value for sample, _, value in self._samples if sample == name)

    def by(self, label: str, name: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for sample, labels, value in self._samples:
            if sample == name:
                counts[labels[label]] = counts.get(labels[label], 0) + int(value)
        return counts
