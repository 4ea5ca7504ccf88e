"""Times each launch of one codec step on a GPU, and other tiles for its convolutions, with random weights. All of it
runs on Triton's kernels; benchmarks.codec_times shows the step with CUDA's.

    python -m benchmarks.codec_sweep --out .cache/gpu [--rows 8 32 128] [--sections step tiles units warps table]

step    device time of each launch, in order
tiles   for each shape of a convolution, the fastest tiles beside the one in kernels/conv_tiles.py
units   for the residual units of each number of channels, two launches and tiles of one
warps   the time of the other kernels by their number of warps; results are not compared
table   the fastest tiles as lines for kernels/conv_tiles.py, and the time of a step with them

All programs are compiled first, in parallel and without the GPU. Weights are read from memory, not from a cache, as in
a step. `bits`: "same" if the results, which are rounded to bf16, equal those of the current tile to the bit.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor

from benchmarks.codec_launches import (
    FULL_WINDOW,
    STEP_ROWS,
    Launch,
    Step,
    captured,
    launch_times_us,
    layer_names,
    published_codec,
    replay_us,
    step_times_us,
)
from benchmarks.codec_tiles import GAIN, TABLE_ROWS, candidates
from benchmarks.codec_trial import Trial, compare, print_trials
from benchmarks.codec_units import columns_of, time_units, time_units_table, unit_groups, unit_tiles, using_unit
from benchmarks.results import save
from oscine.kernels import codec_front, conv_tiles, last_conv
from oscine.kernels import conv as conv_module
from oscine.kernels.conv import Conv, Workspace
from oscine.kernels.conv_tiles import TILES, Shape, Tile
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.triton_programs import Compiled, compile_programs, distinct_programs, gpu_target, recorded
from random_codec import random_codec

Figures = dict[str, Any]
SECTIONS = ("step", "tiles", "units", "warps", "table")
_PARTIALS, _ARRIVALS = 1 << 26, 1 << 16
WARPS = (1, 2, 4, 8)
WARP_KERNELS = {
    "dequantize": (codec_front, "_dequantize"),
    "attend": (codec_front, "_attend"),
    "depthwise_norm": (codec_front, "_depthwise_norm"),
    "last_conv": (last_conv, "_last_conv"),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Launches of one shape. They share a tile; variants differ in columns or in what follows the product."""

    shape: Shape
    variants: dict[tuple[Any, ...], Launch]
    counts: Counter[tuple[Any, ...]]

    @property
    def may_split(self) -> bool:
        return all(_layer(launch).norm_eps is None for launch in self.variants.values())

    def tiles(self, rows: int) -> list[Tile]:
        """The current one first."""
        first = next(iter(self.variants.values()))
        current = _layer(first).tile(rows)
        columns = max(_layer(launch).columns for launch in self.variants.values())
        others = candidates(self.shape, rows * columns, may_split=self.may_split)
        return [current, *(tile for tile in others if tile != current)]


def _layer(launch: Launch) -> Conv:
    assert launch.layer is not None, launch.wrapper
    return launch.layer


def groups(launches: Sequence[Launch]) -> list[Group]:
    found: dict[Shape, Group] = {}
    for launch in launches:
        if launch.wrapper != "conv":
            continue
        layer = _layer(launch)
        shape = layer.taps, layer.inputs, len(layer.weight)
        group = found.setdefault(shape, Group(shape, {}, Counter()))
        variant = layer.columns, layer.activation, layer.norm_eps is not None
        group.variants.setdefault(variant, launch)
        group.counts[variant] += 1
    return list(found.values())


@contextmanager
def using(tile: Tile) -> Iterator[None]:
    with mock.patch.object(conv_module, "tuned_tile", return_value=tile):
        yield


@contextmanager
def with_warps(wrapper: str, warps: int) -> Iterator[None]:
    module, name = WARP_KERNELS[wrapper]
    kernel = getattr(module, name)

    class Changed:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: kernel[grid](*args, **(kwargs | {"num_warps": warps}))

    with mock.patch.object(module, name, Changed()):
        yield


# --- compilation ----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def compile_all(
    row_counts: Sequence[int], slots: int, capability: int, processes: int, sections: Sequence[str] = SECTIONS
) -> Figures:
    """Everything that the sections launch, into Triton's cache on disk."""
    begun_s, config = time.perf_counter(), published_codec()
    codec = CudaCodec(random_codec(config, "meta"), slots, slots)
    recordings: list[Any] = []
    with recorded(recordings):
        for rows in sorted({*row_counts, *STEP_ROWS}):
            step = Step(codec, config, rows, "meta")
            launches = step.launches()
            if rows not in row_counts:
                continue
            for channels, variants in unit_groups(step.units()).items() if "units" in sections else ():
                for unit_choice in unit_tiles(channels, columns_of(variants)):
                    with using_unit(unit_choice):
                        for launch, _ in variants:
                            launch.run()
            for group in groups(launches) if "tiles" in sections else ():
                for tile in group.tiles(rows):
                    with using(tile):
                        for launch in group.variants.values():
                            launch.run()
            for wrapper, same in _by_kernel(launches).items() if "warps" in sections else ():
                for warps in WARPS:
                    with with_warps(wrapper, warps):
                        for launch in same:
                            launch.run()
        programs = distinct_programs(recordings, gpu_target(capability))
    problems: dict[str, str] = {}

    def report(result: Compiled, done: int) -> None:
        if result.problem:
            problems[result.name] = result.problem
        if done % 100 == 0:
            print(f"{done} of {len(programs)} programs compiled", flush=True)

    compile_programs(programs, gpu_target(capability), processes, report)
    seconds = time.perf_counter() - begun_s
    print(f"{len(programs)} programs compiled in {seconds:.0f} s, {len(problems)} failed", flush=True)
    return {"programs": len(programs), "seconds": seconds, "problems": problems}


def _by_kernel(launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    return {wrapper: [launch for launch in launches if launch.wrapper == wrapper] for wrapper in WARP_KERNELS}


# --- sections -------------------------------------------------------------------------------------------------------


def time_step(step: Step, launches: Sequence[Launch]) -> Figures:
    graph = captured(step.run)
    total_us = replay_us(graph, 15)
    own_us, until_next_us = launch_times_us(graph, len(launches))
    names, layers = layer_names(step.codec), Counter[str]()
    found = []
    print(f"--- {step.rows} rows: a step takes {total_us:.0f} us, its kernels {own_us.sum():.0f}", flush=True)
    for launch, own, spent in zip(launches, own_us.tolist(), until_next_us.tolist(), strict=True):
        layers[launch.wrapper] += 1
        name = names.get(id(launch.layer or launch.unit), f"{launch.wrapper} {layers[launch.wrapper] - 1}")
        tile = [*_layer(launch).tile(step.rows)] if launch.wrapper == "conv" else None
        row = {"name": name, "shape": launch.shape, "us": own, "until_next_us": spent, "floor_us": launch.floor_us}
        found.append({**row, "flops": launch.flops, "bytes": launch.nbytes, "tile": tile})
        print(f"{name:24} {launch.shape:44} {own:7.2f} us, {spent:7.2f} to the next, floor {launch.floor_us:6.2f}")
    return {"step_us": total_us, "kernels_us": float(own_us.sum()), "launches": found}


def time_tiles(group: Group, rows: int, workspace: Workspace) -> Figures:
    trials = {variant: Trial(launch, workspace) for variant, launch in group.variants.items()}
    expected: dict[tuple[Any, ...], list[Tensor]] = {}
    found: list[Figures] = []
    errors: dict[str, str] = {}
    tiles = group.tiles(rows)
    for tile in tiles:
        try:
            bits, total_us, each = set(), 0.0, {}
            with using(tile):
                for variant, trial in trials.items():
                    results = trial.results()
                    bits.add(compare(results, expected.setdefault(variant, results)))
                    us = trial.us()
                    each[str(variant)] = us
                    total_us += group.counts[variant] * us
            verdict = "same" if bits == {"same"} else max(bits - {"same"})
            found.append({"tile": [*tile], "us": total_us, "each_us": each, "bits": verdict})
        except Exception as error:  # a tile that does not run is a result
            errors[str([*tile])] = f"{type(error).__name__}: {str(error)[:200]}"
            workspace.arrivals.zero_()
    found.sort(key=lambda row: row["us"])
    current = next((row for row in found if row["tile"] == [*tiles[0]]), None)
    print(f"{group.shape} x {rows}, {sum(group.counts.values())} launches, us of all:", flush=True)
    print_trials(found, current, errors)
    return {"launches": sum(group.counts.values()), "current": current, "tiles": found, "errors": errors}


def time_warps(launches: Sequence[Launch]) -> Figures:
    """Times all launches of one kernel together."""
    figures: Figures = {}
    first = launches[0]

    def run() -> None:
        for launch in launches:
            launch.run()

    for warps in WARPS:
        try:
            with with_warps(first.wrapper, warps):
                figures[str(warps)] = replay_us(captured(run, warm_ups=1), 15)
        except Exception as error:  # as above
            figures[str(warps)] = f"{type(error).__name__}: {str(error)[:200]}"
    shown = {key: round(us, 2) if isinstance(us, float) else us for key, us in figures.items()}
    print(f"{first.wrapper} {first.shape}, {len(launches)} launches, us of all by warps: {shown}", flush=True)
    return figures


def best_table(tiles: dict[str, dict[str, Figures]]) -> dict[Shape, tuple[Tile, ...]]:
    """The current table with the fastest tiles that were found for its row counts, of those with the same sums."""
    table = {}
    for shape, current in TILES.items():
        chosen = list(current)
        for at, rows in enumerate(TABLE_ROWS):
            figures = tiles.get(str(rows), {}).get(str(shape), {})
            right = [row for row in figures.get("tiles", []) if row["bits"] == "same"]
            now = figures.get("current")
            if right and (now is None or right[0]["us"] < GAIN * now["us"]):
                chosen[at] = Tile(*right[0]["tile"])
        table[shape] = tuple(chosen)
    return table


def time_table(tiles: dict[str, dict[str, Figures]], config: Any, codec: Any, slots: int) -> Figures:
    table = best_table(tiles)
    for shape, four in table.items():
        print(f"        {shape}: (\n            " + ", ".join(str(tuple(tile)) for tile in four) + "),")
    before = step_times_us(config, codec, slots)
    with mock.patch.dict(conv_tiles.TILES, table):
        after = step_times_us(config, codec, slots)
    for rows, us in before.items():
        print(f"{rows:>4} rows: {us:8.1f} us with the current tiles, {after[rows]:8.1f} with the table", flush=True)
    return {"table": {str(k): [[*tile] for tile in v] for k, v in table.items()}, "before": before, "after": after}


# --- main -----------------------------------------------------------------------------------------------------------


def _guarded(figures: Figures, key: str, call: Callable[[], Figures]) -> None:
    try:
        figures[key] = call()
    except Exception as error:  # the other sections still run
        figures[key] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{key}: {figures[key]['error']}", flush=True)


@torch.inference_mode()
def measure(options: argparse.Namespace, figures: Figures) -> None:
    config, slots, deadline_s = published_codec(), max(STEP_ROWS), time.monotonic() + options.seconds
    codec = random_codec(config, "cuda")
    runner = CudaCodec(codec, slots, slots)
    runner.state.frames.fill_(FULL_WINDOW)
    workspace = Workspace([], 0, torch.device("cuda"))
    workspace.partials = torch.empty(_PARTIALS, dtype=torch.float32, device="cuda")
    workspace.arrivals = torch.zeros(_ARRIVALS, dtype=torch.int32, device="cuda")
    figures |= {section: {} for section in ("step", "tiles", "units", "warps")}
    steps = {rows: Step(runner, config, rows, "cuda") for rows in options.rows}
    for rows, step in steps.items():
        launches = step.launches()
        if "step" in options.sections:
            _guarded(figures["step"], str(rows), lambda step=step, found=launches: time_step(step, found))  # type: ignore[misc]
    for rows, step in steps.items():
        launches, tiles = step.launches(), figures["tiles"].setdefault(str(rows), {})
        for group in groups(launches) if "tiles" in options.sections else []:
            if time.monotonic() > deadline_s:
                print(f"no time left for {group.shape} x {rows}", flush=True)
                break
            _guarded(tiles, str(group.shape), lambda g=group, r=rows: time_tiles(g, r, workspace))  # type: ignore[misc]
        units = figures["units"].setdefault(str(rows), {})
        for channels, found in unit_groups(step.units()).items() if "units" in options.sections else ():
            _guarded(units, str(channels), lambda c=channels, v=found, r=rows: time_units(c, v, r, workspace))  # type: ignore[misc]
        warps = figures["warps"].setdefault(str(rows), {})
        for wrapper, same in _by_kernel(launches).items() if "warps" in options.sections else ():
            _guarded(warps, wrapper, lambda same=same: time_warps(same))  # type: ignore[misc]
        save(options.out, "codec_sweep", figures)
    if "units" in options.sections:
        _guarded(figures, "units_table", lambda: time_units_table(figures["units"], config, codec, slots))
    if "table" in options.sections:
        _guarded(figures, "table", lambda: time_table(figures["tiles"], config, codec, slots))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(".cache/gpu"))
    parser.add_argument("--rows", nargs="+", type=int, default=[8, 128, 32])
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS))
    parser.add_argument("--capability", type=int, default=90, help="of the GPU: 90 for 9.0")
    parser.add_argument("--seconds", type=float, default=100.0, help="of the measurement: later shapes are left out")
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    processes = len(os.sched_getaffinity(0))
    figures: Figures = {"triton": triton.__version__}
    # Before this process uses the GPU: compilation forks.
    compiled = options.rows, max(STEP_ROWS), options.capability, processes, options.sections
    _guarded(figures, "compiled", lambda: compile_all(*compiled))
    if not options.compile_only:
        measure(options, figures)
    print(save(options.out, "codec_sweep", figures))


if __name__ == "__main__":
    main()
