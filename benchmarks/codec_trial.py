"""One launch of a codec step timed by itself, with results to compare. For codec_sweep.py and codec_units.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.codec_launches import Launch, captured, replay_us
from oscine.kernels.conv import Conv, Workspace
from oscine.kernels.residual_unit import UnitLayers

_SHOWN = 4
_COLD_BYTES, _MAX_COPIES = 100 << 20, 24  # twice an H200's L2 cache


def _copied(layer: Conv | UnitLayers) -> Any:
    if isinstance(layer, UnitLayers):
        return UnitLayers(_copied(layer.conv1), _copied(layer.conv2))
    return replace(layer, weight=layer.weight.clone())


def _weight_bytes(layer: Conv | UnitLayers) -> int:
    if isinstance(layer, UnitLayers):
        return layer.conv1.weight.nbytes + layer.conv2.weight.nbytes
    return layer.weight.nbytes


class Trial:
    """One launch, or a residual unit, on buffers of its own, whose weights are not in a cache when it is timed."""

    def __init__(self, launch: Launch, workspace: Workspace) -> None:
        layer, x, rows, _ = launch.args
        copies = min(_MAX_COPIES, -(-_COLD_BYTES // _weight_bytes(layer)))
        self._layers = [layer, *(_copied(layer) for _ in range(copies - 1))]
        self._launch, self._rest = launch, (x, rows, workspace)
        self._before: Tensor | None = launch.kwargs.get("residual")
        self._kwargs = {name: old.clone() for name, old in launch.kwargs.items() if old is not None}
        if self._before is not None and launch.kwargs.get("raw") is self._before:
            self._kwargs["raw"] = self._kwargs["residual"]
        self._results = [name for name in ("raw", "out") if name in self._kwargs]

    def results(self) -> list[Tensor]:
        for name in self._results:
            self._kwargs[name].zero_()
        if self._before is not None:
            self._kwargs["residual"].copy_(self._before)
        self._launch.call(self._layers[0], *self._rest, **self._kwargs)
        return [self._kwargs[name].clone() for name in self._results]

    def us(self) -> float:
        def run() -> None:
            for layer in self._layers:
                self._launch.call(layer, *self._rest, **self._kwargs)

        return replay_us(captured(run, warm_ups=1), 7) / len(self._layers)


def compare(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    pairs = list(zip(actual, expected, strict=True))
    if all(torch.equal(a.contiguous().view(torch.int16), b.contiguous().view(torch.int16)) for a, b in pairs):
        return "same"
    wrong = max(((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs)
    return f"off by {wrong:.1e}" if wrong < 1e-2 else f"WRONG by {wrong:.1e}"


def print_trials(found: Sequence[dict[str, Any]], current: dict[str, Any] | None, errors: Mapping[str, str]) -> None:
    """The fastest, the current one, two launches, and what did not run."""
    for row in [*found[:_SHOWN], *(row for row in found[_SHOWN:] if row is current or row["tile"] is None)]:
        mark = "   (current)" if row is current else ""
        print(f"    {row['us']:8.2f} {row['tile'] or 'two launches'!s:36} {row['bits']}{mark}", flush=True)
    for tile, text in errors.items():
        print(f"    {tile}: {text[:120]}", flush=True)
