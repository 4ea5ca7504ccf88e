"""Times other tiles for the convolutions of one codec step on a GPU, with random weights. All of it runs on Triton's
kernels; benchmarks.codec_times shows the step with CUDA's, part by part.

    python -m benchmarks.codec_sweep --out .cache/gpu [--rows 8 32 128] [--sections tiles units table]

tiles   for each shape of a convolution, the fastest tiles beside the one in kernels/conv_tiles.py
units   for the residual units of each number of channels, two launches and tiles of one
table   the fastest tiles as lines for kernels/conv_tiles.py, and the time of a step with them

All programs are compiled first, in parallel and without the GPU. Weights are read from memory, not from a cache, as in
a step. `bits`: "same" if the results, which are rounded to bf16, equal those of the current tile to the bit.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor

from benchmarks import codec_launches as launched
from benchmarks.codec_launches import STEP_ROWS, Launch, Step, Trial, compare, published_codec, step_times_us
from benchmarks.codec_tiles import GAIN, TABLE_ROWS, candidates, unit_candidates
from benchmarks.results import read_arguments, save
from oscine.kernels import conv as conv_module
from oscine.kernels import conv_tiles
from oscine.kernels import residual_unit as unit_kernel
from oscine.kernels.conv import Conv, Workspace
from oscine.kernels.conv_tiles import TILES, UNITS, Shape, Tile, UnitTile, unit_tile
from oscine.runner.cuda.codec import CudaCodec
from oscine.runner.cuda.triton_programs import recorded
from random_codec import random_codec

Figures = dict[str, Any]
AnyTile = Tile | UnitTile | None  # None: a residual unit in two launches
SECTIONS = ("tiles", "units", "table")
_CAPABILITY = 90  # of the GPU: 9.0
_PARTIALS, _ARRIVALS = 1 << 26, 1 << 16
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Group:
    """Launches that share a tile: convolutions of one shape, or residual units of so many channels. Variants differ in
    columns or in what is stored or follows the product; `counts`: how many there are of each."""

    key: Shape | int
    variants: dict[tuple[Any, ...], Launch]
    counts: Counter[tuple[Any, ...]]

    @property
    def of_units(self) -> bool:
        return isinstance(self.key, int)

    def current(self, rows: int) -> AnyTile:
        if isinstance(self.key, int):
            return unit_tile(self.key, rows)
        return _layer(next(iter(self.variants.values()))).tile(rows)

    def tiles(self, rows: int) -> list[AnyTile]:
        """First the one whose results the others' are compared with: the current one, or two launches."""
        if isinstance(self.key, int):
            unit = next(iter(self.variants.values())).unit
            assert unit is not None
            return [None, *unit_candidates(self.key, rows * unit.conv1.columns)]
        layers = [_layer(launch) for launch in self.variants.values()]
        columns, may_split = max(layer.columns for layer in layers), all(layer.norm_eps is None for layer in layers)
        others = candidates(self.key, rows * columns, may_split=may_split)
        return list(dict.fromkeys([self.current(rows), *others]))

    def using(self, tile: AnyTile) -> Any:
        module, name = (unit_kernel, "unit_tile") if self.of_units else (conv_module, "tuned_tile")
        return mock.patch.object(module, name, return_value=tile)


def _layer(launch: Launch) -> Conv:
    assert launch.layer is not None, launch.wrapper
    return launch.layer


def _place(launch: Launch) -> tuple[Shape | int, tuple[Any, ...]] | None:
    """Its group and its variant there."""
    if launch.wrapper == "conv":
        layer = _layer(launch)
        shape = layer.taps, layer.inputs, len(layer.weight)
        return shape, (layer.columns, layer.activation, layer.norm_eps is not None)
    channels = launch.unit.channels if launch.unit else None
    return (channels, (launch.kwargs.get("raw") is None,)) if channels in UNITS else None


def groups(launches: Sequence[Launch]) -> list[Group]:
    found: dict[Shape | int, Group] = {}
    for launch in launches:
        if place := _place(launch):
            group = found.setdefault(place[0], Group(place[0], {}, Counter()))
            group.variants.setdefault(place[1], launch)
            group.counts[place[1]] += 1
    return list(found.values())


def tuned(step: Step, sections: Sequence[str]) -> dict[str, list[Group]]:
    """What the sections `tiles` and `units` try."""
    found = {"tiles": [one for one in step.launches() if one.wrapper == "conv"], "units": step.units()}
    return {section: groups(found[section]) for section in found if section in sections}


# --- compilation ----------------------------------------------------------------------------------------------------


@torch.inference_mode()
def compile_all(
    row_counts: Sequence[int], slots: int, capability: int, processes: int, sections: Sequence[str] = SECTIONS
) -> Figures:
    """Everything that the sections launch, into Triton's cache on disk."""
    config = published_codec()
    codec = CudaCodec(random_codec(config, "meta"), slots, slots)
    recordings: list[Any] = []
    with recorded(recordings):
        for rows in sorted({*row_counts, *STEP_ROWS}):
            step = Step(codec, config, rows, "meta")
            step.run()
            if rows not in row_counts:
                continue
            for group in itertools.chain(*tuned(step, sections).values()):
                for tile in group.tiles(rows):
                    with group.using(tile):
                        for launch in group.variants.values():
                            launch.run()
    return launched.compile_recorded(recordings, capability, processes)


# --- sections -------------------------------------------------------------------------------------------------------


def time_tiles(group: Group, rows: int, workspace: Workspace) -> Figures:
    """Times all launches of a group with each tile."""
    trials = [(Trial(launch, workspace), group.counts[variant]) for variant, launch in group.variants.items()]
    expected: list[Tensor] = []
    found: list[Figures] = []
    errors: dict[str, str] = {}
    for tile in group.tiles(rows):
        name = [*tile] if tile else None
        try:
            with group.using(tile):
                results = [result for trial, _ in trials for result in trial.results()]
                expected = expected or results
                each_us = [trial.us() for trial, _ in trials]
            total_us = sum(count * us for (_, count), us in zip(trials, each_us, strict=True))
            found.append({"tile": name, "us": total_us, "each_us": each_us, "bits": compare(results, expected)})
        except Exception as error:  # a tile that does not run is a result
            errors[str(name)] = f"{type(error).__name__}: {str(error)[:200]}"
            workspace.arrivals.zero_()
    found.sort(key=lambda row: row["us"])
    now = group.current(rows)
    current = next((row for row in found if row["tile"] == ([*now] if now else None)), None)
    what = f"{group.key} channels" if group.of_units else f"{group.key}"
    print(f"{what} x {rows}, {group.counts.total()} launches, us of all:", flush=True)
    # The fastest, the current one, two launches, and what did not run.
    for row in [*found[:_SHOWN], *(row for row in found[_SHOWN:] if row is current or row["tile"] is None)]:
        mark = "   (current)" if row is current else ""
        print(f"    {row['us']:8.2f} {row['tile'] or 'two launches'!s:36} {row['bits']}{mark}", flush=True)
    for one, text in errors.items():
        print(f"    {one}: {text[:120]}", flush=True)
    return {"launches": group.counts.total(), "current": current, "tiles": found, "errors": errors}


def best_table(
    found: Mapping[str, Mapping[str, Figures]], table: Mapping[Any, tuple[Any, ...]], make: Callable[..., AnyTile]
) -> dict[Any, tuple[AnyTile, ...]]:
    """The current table with the fastest tiles that were found for its row counts, of those with the same sums. A unit
    is one launch only where that gains."""
    best = {}
    for key, current in table.items():
        chosen = list(current)
        for at, rows in enumerate(TABLE_ROWS):
            figures = found.get(str(rows), {}).get(str(key), {})
            tiles = figures.get("tiles", [])
            two = next((row for row in tiles if row["tile"] is None), None)
            right = [row for row in tiles if row["tile"] and row["bits"] == "same"]
            now = two or figures.get("current")
            if right and (now is None or right[0]["us"] < GAIN * now["us"]):
                chosen[at] = make(*right[0]["tile"])
            elif two:
                chosen[at] = None
        best[key] = tuple(chosen)
    return best


def time_table(table: Mapping[Any, tuple[AnyTile, ...]], config: Any, codec: Any, slots: int) -> Figures:
    """The fastest choices as lines for conv_tiles.py, and the time of a step without them and with them."""
    of_units = table.keys() == UNITS.keys()
    for key, four in table.items():
        named = [f"{'UnitTile' if of_units else ''}{tuple(tile)}" if tile else "None" for tile in four]
        print(f"    {key}: ({', '.join(named)}),")
    base = dict.fromkeys(UNITS, (None,) * 4) if of_units else {}
    times = {}
    for name, choice in {"before": base, "after": table}.items():
        with mock.patch.dict(conv_tiles.UNITS if of_units else TILES, choice):
            times[name] = step_times_us(config, codec, slots)
    for rows, us in times["before"].items():
        without = "with two launches" if of_units else "with the current tiles"
        print(f"{rows:>4} rows: {us:8.1f} us {without}, {times['after'][rows]:8.1f} with the table", flush=True)
    return {"table": {str(k): [[*tile] if tile else None for tile in v] for k, v in table.items()}, **times}


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
    runner.state.frames.fill_(launched.FULL_WINDOW)
    workspace = Workspace([], 0, torch.device("cuda"))
    workspace.partials = torch.empty(_PARTIALS, dtype=torch.float32, device="cuda")
    workspace.arrivals = torch.zeros(_ARRIVALS, dtype=torch.int32, device="cuda")
    figures |= {"tiles": {}, "units": {}}
    for rows in options.rows:
        step = Step(runner, config, rows, "cuda")
        for section, found in tuned(step, options.sections).items():
            tried = figures[section].setdefault(str(rows), {})
            for group in found:
                if section == "tiles" and time.monotonic() > deadline_s:
                    print(f"no time left for {group.key} x {rows}", flush=True)
                    break
                _guarded(tried, str(group.key), lambda g=group, r=rows: time_tiles(g, r, workspace))  # type: ignore[misc]
        save(options.out, "codec_sweep", figures)
    tables: dict[str, tuple[str, Any, Any]] = {"units": ("units", UNITS, UnitTile), "table": ("tiles", TILES, Tile)}
    for section, (source, table, make) in tables.items():
        if section in options.sections:
            key = "units_table" if section == "units" else "table"
            best = best_table(figures[source], table, make)
            _guarded(figures, key, lambda best=best: time_table(best, config, codec, slots))  # type: ignore[misc]


def main() -> None:
    options = read_arguments(
        __doc__, out=Path(".cache/gpu"), rows=[8, 128, 32], sections=list(SECTIONS),
        seconds=(100.0, "of the measurement: later shapes are left out"),
    )  # fmt: skip
    figures: Figures = {"triton": triton.__version__}
    # Before this process uses the GPU: compilation forks.
    compiled = options.rows, max(STEP_ROWS), _CAPABILITY, len(os.sched_getaffinity(0)), options.sections
    _guarded(figures, "compiled", lambda: compile_all(*compiled))
    measure(options, figures)
    print(save(options.out, "codec_sweep", figures))


if __name__ == "__main__":
    main()
