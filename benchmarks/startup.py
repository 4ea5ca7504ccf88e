"""Measures how long a server takes from its start until it is ready, and where the time goes: with kernels compiled
anew, and with cached ones.

    python -m benchmarks.startup [--slots 8]                              the demo voice
    python -m benchmarks.startup --size 1b7 --slots 128                   random weights of a published size, a GPU

The first stage is that of the front end: what it does after it has spawned the worker is done beside the worker's
stages. Those are measured in a process that imports and builds as a worker does. `server` is `oscine serve` until it is
ready. Both runs use caches in a temporary folder; the first finds them empty.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.checkpoints import WEIGHTS, checkpoint
from benchmarks.report_sections import startup_table
from benchmarks.results import read_arguments, save
from benchmarks.server import SETTINGS, machine_kind
from benchmarks.server_process import IMPORTS, serving

START_S = 600.0
# Prints the stages and their seconds. Imports are measured too, so the process that measures has imported nothing.
_BUILD = """
import json, sys, time
begun = time.time()
stages = {"start of Python": begun - float(sys.argv[1])}
from oscine.process.child import importing
with importing():
    import torch
stages["import torch"] = time.time() - begun
begun = time.time()
with importing():
    from oscine.config import EngineConfig, MemoryConfig
    from oscine.model.device import begin_context
    begin_context(sys.argv[4])
    from oscine.engine.build import build_engine
stages["import oscine"] = time.time() - begun
last = time.time()
def progress(stage, done, total):
    global last
    now = time.time()
    name = stage.split(":")[0]
    stages[name] = stages.get(name, 0.0) + now - last
    last = now
config = EngineConfig(slots=int(sys.argv[3]), memory=MemoryConfig(positions_per_slot=1024))
engine = build_engine(sys.argv[2], config, progress, device=sys.argv[4])
engine.stop()
print(json.dumps(stages))
"""


def stages_of_build(model: str, options: argparse.Namespace, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-c", _BUILD, str(time.time()), model, str(options.slots), options.devices]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S)
    if done.returncode:
        sys.exit(f"the engine could not be built:\n{done.stderr[-3000:]}")
    stages: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return stages


def server_s(
    model: Path | None, options: argparse.Namespace, scratch: Path, environment: dict[str, str]
) -> tuple[float, float]:
    """Seconds until the worker is spawned, and until the server is ready."""
    begun_s = time.monotonic()
    settings = SETTINGS.format(slots=options.slots) if options.size else f"[engine]\nslots = {options.slots}\n"
    how = {"settings": settings, "environment": environment, "devices": options.devices}
    with serving(model, scratch, **how) as (server, _):
        ready_s = time.monotonic() - begun_s
        front_end, worker = (psutil.Process(pid).create_time() for pid in (server.process.pid, server.engine_pid))
        server.terminate()
    return worker - front_end, ready_s


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model = checkpoint(options) if options.size else None
    figures: dict[str, Any] = {"model": options.size or "demo", "slots": options.slots}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kernels in ("anew", "cached"):
            figures[kernels] = {}
            for part in ("server", "stages"):
                # Each part finds its own cache empty the first time.
                cache = folder / part
                caches = {"TRITON_CACHE_DIR": str(cache / "triton"), "XDG_CACHE_HOME": str(cache)}
                environment = {**os.environ, **caches, **IMPORTS}
                if part == "server":
                    scratch = folder / f"{kernels}-{part}"
                    spawned_s, figures[kernels][part] = server_s(model, options, scratch, environment)
                else:
                    built = stages_of_build(str(model or "demo"), options, environment)
                    figures[kernels][part] = {"front end spawns the worker": spawned_s, **built}
            print(f"{kernels}: {json.dumps(figures[kernels])}", flush=True)
    return figures


def main() -> None:
    options = read_arguments(__doc__, **WEIGHTS, slots=8, devices="auto")
    figures = measure(options)
    print(startup_table(figures))
    print(save(options.out, f"startup-{machine_kind()}-{options.size or 'demo'}", figures, "torch", "triton"))


if __name__ == "__main__":
    main()
