"""Tries Oscine as a newcomer would and writes the log to docs/first_five_minutes.md.

    python tools/first_five_minutes.py [--keep]

Everything happens in a new folder that is also the home: a fresh clone of the committed state, no caches, no settings.
pip keeps the package index that this machine is configured with. Takes several minutes and downloads PyTorch.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "first_five_minutes.md"
KEPT_VARIABLES = ("PATH", "LANG", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")  # and those of pip and uv
NOISE = ("WARNING: Location", "Looking in ")  # about this machine's package index
SHOWN_LINES = 30
URL = "http://127.0.0.1:{port}"
SPEECH = '{{"input": "Hello there.", "response_format": "wav", "stream": true}}'
TIMES = "first byte after %{{time_starttransfer}} s, %{{size_download}} bytes after %{{time_total}} s\\n"
# Titles and commands. One that ends with & goes on until the end; the next begins when its server is ready.
STEPS = (
    ("Clone the repository", "git clone --quiet --depth 1 file://{root} oscine && ls oscine"),
    ("Install and serve", "make serve ARGS='--port {port}' &"),
    (
        "First request",
        f"curl -sS {URL}/v1/audio/speech -H 'content-type: application/json' -d '{SPEECH}' -o first.wav -w '{TIMES}'",
    ),
    ("Playground", f"curl -sS -o page.html -w '%{{{{http_code}}}} %{{{{content_type}}}}\\n' {URL}/"),
    ("Speak without a server", 'oscine say "Hello there." -o hello.wav'),
    ("Check this machine", "oscine doctor"),
    ("A checkpoint that clones, with random weights", "python tools/random_checkpoint.py base 0b6-base"),
    (
        "Clone a voice (random weights: noise)",
        'oscine say "Now in my voice." --model base --ref-audio hello.wav --ref-text "Hello there." '
        "--max-new-tokens 40 --save-voice me.safetensors -o cloned.wav",
    ),
    ("Upgrade, when nothing has changed", "git pull --quiet && make install && oscine --version"),
)


@dataclass
class Log:
    """Runs commands in a home and keeps what they printed."""

    home: Path
    entries: list[str] = field(default_factory=list)
    times_s: list[tuple[str, float]] = field(default_factory=list)
    load_average: float = field(default_factory=lambda: os.getloadavg()[0])  # of other programs, at the start

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in KEPT_VARIABLES or name.startswith(("PIP_", "UV_"))
        }
        user_config = Path("~/.config/pip/pip.conf").expanduser()
        if user_config.exists():
            kept.setdefault("PIP_CONFIG_FILE", str(user_config))
        own = {"HOME": str(self.home), "PIP_NO_CACHE_DIR": "1", "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "110"}
        path = f"{self.home}/oscine/.venv/bin{os.pathsep}{kept['PATH']}"  # as after `source .venv/bin/activate`
        return {**kept, **own, "PATH": path, "NO_PROXY": "127.0.0.1"}

    @property
    def folder(self) -> Path:
        return self.home / "oscine" if (self.home / "oscine").exists() else self.home

    def run(self, title: str, command: str) -> None:
        print(f"{title}: {command}", flush=True)
        begun_s = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )
        took_s = time.monotonic() - begun_s
        self.add(title, command, done.stdout + done.stderr, took_s)
        if done.returncode:
            sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")

    def add(self, title: str, command: str, output: str, took_s: float) -> None:
        text = output.replace(str(self.home), "~").replace(str(ROOT), "REPOSITORY")
        lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith(NOISE)]
        cut = [*lines[: SHOWN_LINES - 1], "..."] if len(lines) > SHOWN_LINES else lines
        shown = "\n".join([f"$ {command.replace(str(ROOT), 'REPOSITORY')}", *cut])
        self.entries.append(f"## {title}: {took_s:.1f} s\n\n```text\n{shown}\n```\n")
        self.times_s.append((title, took_s))


@contextmanager
def serving(log: Log, title: str, command: str, port: int) -> Iterator[None]:
    """Starts the server, and adds what it has printed when it is ready."""
    begun_s = time.monotonic()
    print(f"{title}: {command}", flush=True)
    with open(log.home / "serve.log", "w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            shlex.split(command.removesuffix("&")),
            cwd=log.folder,
            env=log.environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            while not is_ready(port):
                if process.poll() is not None:
                    sys.exit(Path(output.name).read_text(encoding="utf-8"))
                time.sleep(0.05)
            took_s = time.monotonic() - begun_s
            time.sleep(0.5)  # for the banner
            log.add(title, command, Path(output.name).read_text(encoding="utf-8"), took_s)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # make, and the server that it runs
            process.wait(60)


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def steps(port: int) -> list[tuple[str, str]]:
    return [(title, command.format(port=port, root=ROOT)) for title, command in STEPS]


def try_everything(log: Log) -> None:
    port = free_port()
    with ExitStack() as until_the_end:
        for title, command in steps(port):
            if command.endswith("&"):
                until_the_end.enter_context(serving(log, title, command, port))
            else:
                log.run(title, command)


def page(log: Log) -> str:
    cores, commit = os.cpu_count(), subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"])
    total_s = sum(took_s for _, took_s in log.times_s)
    rows = "\n".join(f"| {title} | {took_s:.1f} s |" for title, took_s in log.times_s)
    return f"""# The first five minutes

<!-- Generated by tools/first_five_minutes.py -->

A log of a first try: a new home, no caches, no settings, a fresh clone. `python tools/first_five_minutes.py` writes it,
and anyone can repeat it. The machine has {cores} slow cores ({platform.machine()}) and no GPU, and other programs used
it too: its load average was {log.load_average:.1f} when this began, and above {cores} all takes longer than when idle.
Installing is mostly the download of PyTorch, here from a nearby package index; elsewhere it takes longer.
Commit {commit.decode().strip()}, {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}.

| step | time |
|---|---:|
{rows}
| **together** | **{total_s:.0f} s** |

{chr(10).join(log.entries)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="keep the new home")
    keep = parser.parse_args().keep
    home = Path(tempfile.mkdtemp(prefix="first-five-minutes-"))
    log = Log(home)
    try:
        try_everything(log)
        PAGE.write_text(page(log), encoding="utf-8")
    finally:
        print(home) if keep else shutil.rmtree(home)


if __name__ == "__main__":
    main()
