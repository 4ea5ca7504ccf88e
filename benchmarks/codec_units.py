"""The section `units` of codec_sweep.py: residual units as two launches, and as one with other tiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch import Tensor

from benchmarks.codec_launches import Launch, step_times_us
from benchmarks.codec_tiles import GAIN, TABLE_ROWS, unit_candidates
from benchmarks.codec_trial import Trial, compare, print_trials
from oscine.kernels import conv_tiles
from oscine.kernels import residual_unit as unit_kernel
from oscine.kernels.conv import Workspace
from oscine.kernels.conv_tiles import UNITS, UnitTile, unit_tile

Figures = dict[str, Any]


@contextmanager
def using_unit(tile: UnitTile | None) -> Iterator[None]:
    with mock.patch.object(unit_kernel, "unit_tile", return_value=tile):
        yield


def unit_groups(units: Sequence[Launch]) -> dict[int, list[tuple[Launch, int]]]:
    """Units by their channels: those that differ in what they store, and how many there are of each."""
    found: dict[int, dict[bool, list[Launch]]] = {}
    for launch in units:
        assert launch.unit is not None, launch.wrapper
        found.setdefault(launch.unit.channels, {}).setdefault(launch.kwargs.get("raw") is None, []).append(launch)
    return {
        channels: [(same[0], len(same)) for same in variants.values()]
        for channels, variants in found.items()
        if channels in UNITS
    }


def unit_tiles(channels: int, columns: int) -> list[UnitTile | None]:
    return [None, *unit_candidates(channels, columns)]


def columns_of(variants: Sequence[tuple[Launch, int]]) -> int:
    first = variants[0][0]
    assert first.unit is not None, first.wrapper
    return len(first.rows) * first.unit.conv1.columns


def time_units(channels: int, variants: Sequence[tuple[Launch, int]], rows: int, workspace: Workspace) -> Figures:
    """Times all units with this number of channels: two launches each, then each tile of one launch."""
    trials = [(Trial(launch, workspace), count) for launch, count in variants]
    current = unit_tile(channels, rows)
    now = [*current] if current else None
    expected: list[Tensor] = []
    found: list[Figures] = []
    errors: dict[str, str] = {}
    for tile in unit_tiles(channels, columns_of(variants)):
        name = [*tile] if tile else None
        try:
            with using_unit(tile):
                results = [result for trial, _ in trials for result in trial.results()]
                expected = expected or results
                total_us = sum(count * trial.us() for trial, count in trials)
            found.append({"tile": name, "us": total_us, "bits": compare(results, expected)})
        except Exception as error:  # a tile that does not run is a result
            errors[str(name)] = f"{type(error).__name__}: {str(error)[:200]}"
            workspace.arrivals.zero_()
    found.sort(key=lambda row: row["us"])
    count = sum(count for _, count in variants)
    print(f"{channels} channels x {rows}, {count} units, us of all:", flush=True)
    print_trials(found, next((row for row in found if row["tile"] == now), None), errors)
    return {"units": count, "tiles": found, "errors": errors}


def best_units(units: dict[str, dict[str, Figures]]) -> dict[int, tuple[UnitTile | None, ...]]:
    """UNITS with what was found fastest; one launch only where it gains."""
    table = {}
    for channels, current in UNITS.items():
        chosen = list(current)
        for at, rows in enumerate(TABLE_ROWS):
            found = units.get(str(rows), {}).get(str(channels), {}).get("tiles", [])
            two = next((row for row in found if row["tile"] is None), None)
            right = [row for row in found if row["tile"] and row["bits"] == "same"]
            if two:
                gains = right and right[0]["us"] < GAIN * two["us"]
                chosen[at] = UnitTile(*right[0]["tile"]) if gains else None
        table[channels] = tuple(chosen)
    return table


def time_units_table(units: dict[str, dict[str, Figures]], config: Any, codec: Any, slots: int) -> Figures:
    """The fastest choices as lines for conv_tiles.UNITS, and the time of a step without them and with them."""
    table = best_units(units)
    for channels, four in table.items():
        print(f"    {channels}: ({', '.join(f'UnitTile{tuple(tile)}' if tile else 'None' for tile in four)}),")
    times = {}
    for name, choice in {"two_launches": dict.fromkeys(UNITS, (None,) * 4), "table": table}.items():
        with mock.patch.dict(conv_tiles.UNITS, choice):
            times[name] = step_times_us(config, codec, slots)
    for rows, us in times["two_launches"].items():
        print(f"{rows:>4} rows: {us:8.1f} us with two launches, {times['table'][rows]:8.1f} with the table", flush=True)
    return {"table": {str(k): [[*tile] if tile else None for tile in v] for k, v in table.items()}, **times}
