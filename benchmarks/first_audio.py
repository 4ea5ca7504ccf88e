"""Measures where the time to the first audio goes: the stages from the client's first byte to its first audio, over
HTTP, with clock points in client, front end and worker.

    python -m benchmarks.first_audio --size 1b7 [--callers 1 32 128]         random weights of a published size, a GPU
    python -m benchmarks.first_audio --model demo --callers 1 --slots 2      a checkpoint that speaks; a CPU will do

Random weights never end their speech: every response has --frames frames of 80 ms. The result is
docs/results/first-audio-<gpu or cpu>-<size or model>.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checkpoints import WEIGHTS, checkpoint, endless_config
from benchmarks.clock_points import ClockPoints, read_points
from benchmarks.piped_server import piped_server, serve_app
from benchmarks.report_sections import STAGES, stages_table
from benchmarks.results import read_arguments, save
from benchmarks.server import START_S, machine_kind
from benchmarks.timed_parts import TimedEngine, TimedPlanner, TimedResponses, build_timed
from oscine.config import EngineConfig, PacingConfig
from oscine.engine.remote.client import EngineClient
from oscine.model.checkpoint import find_checkpoint
from oscine.model.config import read_config
from oscine.server.app import build_app
from oscine_bench.benchmark import open_client, run_async
from oscine_bench.exchange import Exchange
from oscine_bench.load import LoadRun, OfferedLoad, RunLength
from oscine_bench.metrics import spread
from oscine_bench.targets import Target
from oscine_bench.workload import load_workload

Row = dict[str, Any]
Times = dict[int, dict[str, float]]  # by seed and clock point


def serve(pipe: Pipe, model: str, config: EngineConfig, device: str, folder: Path) -> None:
    """`oscine serve` with clock points; both processes write theirs into `folder` when they end."""
    points = ClockPoints()
    with EngineClient(partial(build_timed, model, config, device, folder / "worker.json")) as client:
        client.wait_ready(START_S)
        engine: Any = TimedEngine(client, points, begun="submitted", done="accepted", delivered="received")
        app = build_app(engine, read_config(find_checkpoint(model)).card("timed"), health=lambda: client.health)
        app.state.service.planner = TimedPlanner(app.state.service.planner, points)
        app.add_middleware(TimedResponses, points=points)
        serve_app(pipe, app)
    points.write(folder / "front-end.json")


async def measure(url: str, callers: int, options: argparse.Namespace) -> tuple[Row, Times]:
    """The figures of the load, and the client's times of its measured requests."""
    target = Target(url=url, frames=options.frames)
    times: Times = {}

    def keep(exchange: Exchange) -> None:
        if exchange.failure is None and exchange.request.phase == "measured":
            times[exchange.request.seed] = {"sent": exchange.sent_s, "first_byte": exchange.arrived_s[0]}

    async with open_client(target) as client:
        # Other seeds at each load: they identify the requests.
        workload = load_workload("english", ["short"], callers)
        length = RunLength(options.seconds, options.requests, warmup_s=options.warmup)
        row = await LoadRun(client, target, workload, OfferedLoad("closed", callers), length, keep=keep).run()
    return row, times


def stages_ms(times: Times) -> Row:
    """Percentiles of each stage; stages of a request add up to its first audio."""
    complete = [point for point in times.values() if all(end in point for end in STAGES.values())]
    rows = np.array([_in_order(point) for point in complete]).reshape(len(complete), len(STAGES) + 1)
    stages = np.diff(rows, axis=1)
    totals = rows[:, -1] - rows[:, 0]
    figures = {name: spread(stages[:, index].tolist(), scale=1e3) for index, name in enumerate(STAGES)}
    return {"requests": len(complete), "stages_ms": figures, "first_audio_ms": spread(totals.tolist(), scale=1e3)}


def _in_order(point: dict[str, float]) -> list[float]:
    # The loop may admit a request before `submit` returns, and a device may begin before the host has launched all.
    point = point | {"prompt_built": min(point["prompt_built"], point["admit_begun"])}
    times_s = [point["sent"], *(point[end] for end in STAGES.values())]
    return np.maximum.accumulate(times_s).tolist()


def measure_all(options: argparse.Namespace, say: Callable[[str], None] = print) -> Row:
    model, pacing = options.model, PacingConfig(launch_margin_s=options.launch_margin)
    config = EngineConfig(slots=options.slots, pacing=pacing)
    if options.size:
        model = str(checkpoint(options))
        config = endless_config(options.slots, pacing=pacing)
    loads: dict[str, tuple[Row, Times]] = {}
    with tempfile.TemporaryDirectory() as folder:
        with piped_server(serve, model, config, options.device, Path(folder)) as server:
            for callers in options.callers:
                loads[str(callers)] = row, _ = run_async(measure(server.url, callers, options))
                say(f"{callers} callers: {row['succeeded']} of {row['requests']}, failures {row['failures'] or 'none'}")
        served = read_points(*Path(folder).glob("*.json"))
    figures: Row = {"slots": options.slots, "frames": options.frames, "launch_margin_s": options.launch_margin}
    figures["loads"] = {}
    for callers, (row, times) in loads.items():
        joined = {seed: {**served.get(seed, {}), **point} for seed, point in times.items()}
        measured = {name: row[name] for name in ("succeeded", "failures", "x_real_time")}
        figures["loads"][callers] = {**measured, **stages_ms(joined)}
    return figures


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    margin_s = PacingConfig().launch_margin_s
    options = read_arguments(
        __doc__, words, **WEIGHTS, model=(str, "a checkpoint that speaks: a folder, a hub id or demo"),
        callers=[1, 32, 128], slots=128, frames=(56, "of 80 ms, per request"), seconds=(10.0, "of each load"),
        requests=(int, "of each load, instead of --seconds"), warmup=(2.0, "seconds at each load"),
        launch_margin=(margin_s, "seconds; 1: frames are launched at once"), device="auto",
    )  # fmt: skip
    if bool(options.size) == bool(options.model):
        sys.exit("name either --size or --model")
    return options


def main() -> None:
    options = arguments()
    figures = measure_all(options, partial(print, flush=True))
    print(stages_table(figures["loads"]))
    name = f"first-audio-{machine_kind()}-{options.size or Path(options.model).name}"
    print(save(options.out, name, figures, "torch", "uvicorn", "fastapi", "msgspec"))


if __name__ == "__main__":
    main()
