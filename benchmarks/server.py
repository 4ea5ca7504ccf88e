"""Measures the whole server on one machine: `oscine serve` with random weights of the published sizes, `oscine bench`
over loopback. Closed loops, open loops, and the highest sustained rate; a preset voice and a cloned one.

    python -m benchmarks.server [--sizes 1b7 0b6] [--kinds preset clone] [--closed 1 8 32] [--open 1 10 50] [--search]
    python -m benchmarks.server --widths small --sizes 0b6 --closed 1 2 --open 1 --frames 10 --slots 4     a CPU

Speech never ends by itself and no silence is trimmed, so every response has exactly --frames frames of 80 ms. The
result is docs/results/server-gpu-<size>-<kind>.json; `-256-slots` follows if there are not 128 slots, and `-search` if
rates alone are tried. It is written after every load, so `oscine bench report` can read it even if the run was
interrupted. This process is the client and does not load torch.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import server_process
from benchmarks.checkpoints import KINDS, POSITIONS, WEIGHTS, checkpoint
from benchmarks.report_table import SIZES
from benchmarks.results import command_words, read_arguments, stopwatch
from benchmarks.server_process import IMPORTS, Figures, Footprints, ServerProcess, fetch, form
from oscine.audio.clips import pcm16, wav_header
from oscine.audio.pcm import FRAME_RATE_HZ
from oscine.errors import OscineError
from oscine_bench.benchmark import Bench, run_async
from oscine_bench.load import OfferedLoad, RunLength
from oscine_bench.record import make_result, write_result
from oscine_bench.report import COLUMNS, load_name, warnings
from oscine_bench.search import SearchLimits, seconds_for_p95
from oscine_bench.targets import Target
from oscine_bench.workload import load_workload

VOICES = {"preset": "preset voice", "clone": "cloned voice"}
VOICE = "bench"  # the uploaded one
CLIP_S = 3.0
START_S = 500.0  # without cached kernels, all of them are compiled
SLOTS = 128
WARMUP_S = 1.0
SEARCH_FROM_PER_S, MAX_SEARCH_PER_S, SEARCH_RESOLUTION = 10.0, 500.0, 0.08
# As `endless_config`.
SETTINGS = f"""
[engine]
slots = {{slots}}
runaway.enabled = false
memory.positions_per_slot = {POSITIONS}
"""

Row = dict[str, Any]


# --- the server ---


@contextmanager
def serving(model: Path, options: argparse.Namespace) -> Iterator[tuple[ServerProcess, str, Row]]:
    """The server, its address, and facts about its start."""
    more = ["--kernels", options.kernels, *(word for setting in options.set for word in ("--set", setting))]
    cached = cached_kernels()
    begun_s = time.monotonic()
    folder, settings = options.scratch / f"serve-{secrets.token_hex(4)}", SETTINGS.format(slots=options.slots)
    how: dict[str, Any] = {"settings": settings, "environment": IMPORTS, "devices": options.devices}
    with server_process.serving(model, folder, *more, within_s=START_S, **how) as (server, url):
        facts = {
            "start_s": time.monotonic() - begun_s,
            "kernels_compiled": {kind: count - cached[kind] for kind, count in cached_kernels().items()},
            "slots": options.slots,
            "settings": options.set,
            "device": ", ".join(Figures.of(url).by("device", "oscine_engine_info")),  # with its dtype and kernels
            "memory_ready": memory(server, url),
        }
        yield server, url, facts
        facts["exit_status"] = server.terminate()


def cached_kernels() -> dict[str, int]:
    """Compiled kernels in the caches of Triton and of our CUDA kernels."""
    home = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    folders = {
        "triton": Path(os.environ.get("TRITON_CACHE_DIR", "~/.triton/cache")),
        "cuda": home / "oscine" / "kernels",
    }
    return {kind: sum(1 for _ in folder.expanduser().rglob("*.cubin")) for kind, folder in folders.items()}


def memory(server: ServerProcess, url: str) -> Row:
    held = Footprints.of(server)
    return {
        "engine_device_mib": Figures.of(url)["oscine_memory_bytes"] / 2**20,  # allocated tensors
        "gpu_used_mib": gpu_used_mib(),  # everything, including graphs and libraries
        "engine_mib": held.engine.memory_mib,
        "front_end_mib": held.front_end.memory_mib,
    }


def gpu_used_mib() -> float | None:
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    used = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return float(used[0]) if used else None


def machine_kind() -> str:
    """The word in the names of results."""
    return "cpu" if gpu_used_mib() is None else "gpu"


def upload_voice(url: str) -> None:
    """Uploads noise with a transcript, so that the voice is cloned in context."""
    rate_hz = 24000
    noise = np.random.default_rng(0).normal(0, 0.1, int(CLIP_S * rate_hz)).astype(np.float32)
    clip = wav_header(rate_hz, len(noise)) + pcm16(noise).tobytes()
    fields = {"name": VOICE, "consent": "noise, not a person's voice", "ref_text": "A few words of reference."}
    status, message = fetch(url, "/v1/audio/voices", *form(fields, clip))
    if status != 200:
        sys.exit(f"the server refused the voice ({status}): {message}")


# --- the loads ---


@dataclass(slots=True)
class Trial:
    """Measures one server at load after load, and saves after each."""

    bench: Bench
    seconds: float
    say: Callable[[str], None]
    save: Callable[[Row], None]
    rows: list[Row] = field(default_factory=list)

    def figures(self) -> Row:
        span = {"seconds": self.seconds, "warmup_s": WARMUP_S}
        return {**self.bench.figures(self.rows), "span": span}

    def run(self, load: OfferedLoad) -> None:
        """Longer at low rates."""
        seconds = self.seconds if load.kind == "closed" else max(self.seconds, seconds_for_p95(load.value))
        self.bench.length, self.bench.on_row = RunLength(seconds, warmup_s=WARMUP_S), self._report
        self.rows += run_async(self.bench.run([load]))
        self.save(self.figures())

    def search(self, limits: SearchLimits) -> float | None:
        """Begins at the highest rate that has held already, or a low one."""
        tried: list[Row] = []
        held: Row = {"limits": asdict(limits), "rate_per_s": None, "tried": tried}

        def keep(row: Row) -> None:
            rate_per_s, broken = row["load"]["value"], row["limits_broken"]
            tried.append({"rate_per_s": rate_per_s, "first_audio_ms": row["first_audio_ms"], "broken": broken})
            held["rate_per_s"] = max((one["rate_per_s"] for one in tried if not one["broken"]), default=None)
            self._report(row)
            self.say(f"   {'; '.join(broken) or 'holds'}")
            self.save({**self.figures(), "search": held})

        self.bench.length, self.bench.on_row = RunLength(self.seconds, warmup_s=WARMUP_S), keep
        opened = [row for row in self.rows if row["load"]["kind"] == "open" and not limits.violations(row)]
        first = max((row["load"]["value"] for row in opened), default=SEARCH_FROM_PER_S)
        range_per_s = {"first": first, "max_rate": MAX_SEARCH_PER_S, "resolution": SEARCH_RESOLUTION}
        return run_async(self.bench.search(limits, **range_per_s)).rate_per_s

    def _report(self, row: Row) -> None:
        expected_s, made_s = (self.bench.target.frames or 0) / FRAME_RATE_HZ, row["audio_s"]
        row["exact_length"] = made_s is not None and made_s["least"] == made_s["most"] == expected_s
        self.say(", ".join(f"{name} {cell(row)}" if name != "load" else cell(row) for name, cell in COLUMNS.items()))
        if not row["exact_length"]:
            self.say(f"   {load_name(row)}: expected {expected_s:.2f} s each, got {made_s}")
        for warning in warnings(row):
            self.say(f"   {warning}")


def result_name(options: argparse.Namespace, size: str, kind: str) -> str:
    """So that a run with other slots, or of rates alone, does not replace the figures that the README shows."""
    parts = [f"server-{machine_kind()}-{size}-{kind}"]
    if options.slots != SLOTS:
        parts.append(f"{options.slots}-slots")
    if options.search and not options.closed:
        parts.append("search")
    return "-".join(parts)


def measure(options: argparse.Namespace, size: str, kind: str, say: Callable[[str], None]) -> None:
    model = checkpoint(options, size, kind)
    say(f"{SIZES[size]}, {kind}: starting the server")
    path = options.out / f"{result_name(options, size, kind)}.json"
    name = f"Oscine {SIZES[size]}, {VOICES[kind]}"
    with serving(model, options) as (server, url, facts):
        say(f"{url} is ready after {facts['start_s']:.1f} s, {facts['memory_ready']}")
        if kind == "clone":
            upload_voice(url)
        target = Target(url=url, frames=options.frames, voice=VOICE if kind == "clone" else None)
        workload = load_workload("english", options.lengths)

        def save(figures: Row) -> None:
            facts["memory_after"] = memory(server, url)
            about = {"size": size, "kind": kind, "widths": options.widths, "server": facts}
            result = make_result(name, command_words(), {**figures, **about}, program="python")
            result["versions"]["torch"] = metadata.version("torch")
            write_result(path, result)

        trial = Trial(Bench(target, workload, RunLength()), options.seconds_per_step, say, save)
        for load in [OfferedLoad("closed", n) for n in options.closed] + [OfferedLoad("open", r) for r in options.open]:
            trial.run(load)
        if options.search:
            say(f"highest rate that holds: {trial.search(SearchLimits(p95_ms=options.p95_ms))} requests/s")
    say(f"{path}, exit status of the server: {facts['exit_status']}")


def main() -> None:
    shared = {name: option for name, option in WEIGHTS.items() if name != "size"}
    options = read_arguments(
        __doc__, **shared, sizes={"nargs": "+", "choices": SIZES, "default": ["1b7"]},
        kinds={"nargs": "+", "choices": KINDS, "default": ["preset"]},
        closed={"nargs": "*", "type": int, "default": [1, 4, 8, 16, 32, 64, 128], "help": "callers"},
        open={"nargs": "*", "type": float, "default": [1, 5, 10, 20, 50, 100], "help": "requests per second"},
        search=(False, "then find the highest rate with no gap and --p95-ms"), p95_ms=(50.0, "limit of first audio"),
        seconds_per_step=(6.0, "longer at low rates"), frames=(56, "of 80 ms, per request"),
        lengths=(["short"], "of the texts: short, medium, long"),
        slots=SLOTS, devices="auto",
        kernels={"choices": ["auto", "triton", "cuda"], "default": "auto", "help": "engine.kernels"},
        set={"action": "append", "default": [], "help": "a setting of the server: engine.queue_wait_s=10"},
    )  # fmt: skip
    say = stopwatch()
    failed = []
    for size in options.sizes:
        for kind in options.kinds:
            try:
                measure(options, size, kind, say)
            except (OscineError, AssertionError) as error:  # measure the others all the same
                say(f"{SIZES[size]}, {kind} failed: {error}")
                failed.append(f"{size} {kind}")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
