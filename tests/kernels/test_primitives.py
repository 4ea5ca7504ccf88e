"""Every plan fits into the shared memory of every supported GPU. The compiler confirms it here for some programs;
tools/compile_kernels.py compiles all of them, for every GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oscine.kernels import primitives
from oscine.kernels.conv import Conv
from oscine.kernels.conv_tiles import TILES, UNITS
from oscine.kernels.primitives import BLOCK_BYTES, block_bytes, fitting_stages
from oscine.kernels.residual_unit import UnitLayers

ROOT = Path(__file__).parents[2]


def test_stages_stay_as_they_are_where_they_fit() -> None:
    assert fitting_stages(4, 24 << 10, 227 << 10) == 4


def test_stages_are_dropped_until_the_tiles_fit() -> None:
    assert fitting_stages(4, 40 << 10, 99 << 10) == 3
    assert fitting_stages(4, 60 << 10, 99 << 10) == 2


def test_the_interpreter_uses_the_plans_of_the_largest_gpu() -> None:
    assert block_bytes(torch.device("cpu")) == max(BLOCK_BYTES.values())


@pytest.mark.parametrize("limit", sorted(set(BLOCK_BYTES.values())))
def test_every_tile_of_a_convolution_fits(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "block_bytes", lambda device: limit)
    for taps, inputs, outputs in TILES:
        layer = Conv(torch.empty(outputs, taps * inputs, dtype=torch.bfloat16), columns=1, taps=taps)
        for rows in (1, 8, 32, 128):
            tile = layer.tile(rows)
            assert (tile.stages - 1) * (tile.rows + tile.outputs + tile.extra) * tile.depth * 2 <= limit, tile


@pytest.mark.parametrize("limit", sorted(set(BLOCK_BYTES.values())))
def test_every_tile_of_a_residual_unit_fits(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "block_bytes", lambda device: limit)
    for channels, tiles in UNITS.items():
        layers = (Conv(torch.empty(channels, taps * channels).bfloat16(), columns=1, taps=taps) for taps in (7, 1))
        unit = UnitLayers(*layers)
        for rows, tuned in zip((1, 8, 32, 128), tiles, strict=True):
            tile = unit.tile(rows)
            assert (tile is None) == (tuned is None), (channels, rows)
            assert tile is None or (tile.stages - 1) * (tile.columns + channels) * tile.depth * 2 <= limit, tile


def test_a_residual_unit_that_fits_nowhere_is_two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primitives, "block_bytes", lambda device: 16 << 10)
    layers = (Conv(torch.empty(192, taps * 192).bfloat16(), columns=1, taps=taps) for taps in (7, 1))
    assert UnitLayers(*layers).tile(128) is None


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    target = 89  # of the GPUs with the least shared memory
    out = tmp_path / "summary.json"
    command = [sys.executable, "tools/compile_kernels.py", "--targets", str(target), "--every", "9", "--out", str(out)]
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {
        "PYTHONPATH": paths,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    (summary,) = json.loads(out.read_text())["figures"]["targets"]
    assert summary["target"] == f"sm_{target}" and summary["problems"] == 0 and summary["programs"] >= 10, summary
    assert 0 < summary["largest_shared_bytes"] <= summary["limit_bytes"], summary
