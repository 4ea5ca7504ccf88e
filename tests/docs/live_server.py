"""`oscine serve` on the demo voice in its own process, as a user starts it."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def demo_server(folder: Path, *options: str, python: str = sys.executable) -> Iterator[str]:
    """Its URL. `folder` keeps its voices and its log."""
    command = [python, "-m", "oscine", "serve", "--port", "0", "--log-format", "json", *options]
    with open(folder / "server.log", "w+b") as log:
        process = subprocess.Popen([*command, "--voices-dir", str(folder / "voices")], stderr=log, env=environment())
        try:
            yield _url(process, folder / "server.log")
        finally:
            process.terminate()
            process.wait(timeout=600)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


def _url(process: subprocess.Popen[bytes], log: Path) -> str:
    while process.poll() is None:
        for line in log.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                if (entry := json.loads(line)).get("message") == "ready":
                    return str(entry["url"])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    raise RuntimeError(f"the server ended:\n{log.read_text(encoding='utf-8')}")
