"""`python -m benchmarks.codec_sweep` times right tiles only, and survives those that do not run."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace

pytest.importorskip("triton")

from benchmarks import codec_launches, codec_sweep
from benchmarks.codec_launches import Step, layer_names
from benchmarks.codec_sweep import best_table, compile_all, groups, time_tiles
from benchmarks.codec_tiles import candidates, unit_candidates
from oscine.kernels.conv import Workspace
from oscine.kernels.conv_tiles import TILES, UNITS, Tile, UnitTile
from oscine.kernels.primitives import BLOCK_BYTES
from oscine.model.config import parse_codec_config
from oscine.runner.cuda.codec import CudaCodec
from random_checkpoint import tiny_codec_config
from random_codec import random_codec
from tests.runner.codec_streams import short_config

pytestmark = pytest.mark.slow
ROWS = 2
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="module")
def step() -> Step:
    config = short_config(parse_codec_config(tiny_codec_config()))
    with torch.inference_mode():
        return Step(CudaCodec(random_codec(config, DEVICE), ROWS, ROWS), config, ROWS, DEVICE)


@pytest.fixture
def workspace(monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Runs calls at once instead of in graphs, as there is no GPU."""
    if DEVICE == "cpu":
        monkeypatch.setattr(codec_launches, "captured", _run)
        monkeypatch.setattr(codec_launches, "replay_us", lambda graph, replays: 1.0)
    monkeypatch.setattr(codec_launches, "MAX_COPIES", 1)
    found = Workspace([], 0, torch.device(DEVICE))
    found.partials = torch.empty(1 << 16, dtype=torch.float32, device=DEVICE)
    found.arrivals = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    return found


def _run(call: Callable[[], object], warm_ups: int) -> None:
    call()


@torch.inference_mode()
def test_a_launch_repeats_its_results_with_any_tile_that_runs(
    step: Step, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = step.launches()
    assert {launch.wrapper for launch in launches} == {"dequantize", "conv", "attend", "depthwise_norm", "last_conv"}
    assert all(launch.floor_us > 0 for launch in launches)
    names = layer_names(step.codec)
    assert all(id(launch.layer) in names for launch in launches if launch.layer)
    tiles = [Tile(16, 16, 0, 16, 1, 4, 2), Tile(32, 16, 0, 32, 1, 4, 2), Tile(16, 16, 2, 16, 1, 4, 2)]
    monkeypatch.setattr(codec_sweep, "candidates", lambda *args, **kwargs: tiles)
    for group in groups(launches):
        figures = time_tiles(group, ROWS, workspace)
        verdicts = {tuple(row["tile"]): row["bits"] for row in figures["tiles"]}
        assert figures["current"]["bits"] == "same" and len(verdicts) >= 2
        assert not any(verdict.startswith("WRONG") for verdict in verdicts.values()), verdicts
        assert "AssertionError" in figures["errors"][str([*tiles[2]])]


@torch.inference_mode()
def test_a_unit_repeats_its_results_in_one_launch(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    config = short_config(parse_codec_config(tiny_codec_config()))
    decoder = replace(config.decoder, decoder_dim=96)
    config = replace(config, decoder=decoder)
    step = Step(CudaCodec(random_codec(config, DEVICE), ROWS, ROWS), config, ROWS, DEVICE)
    good, wrong = UnitTile(16, 16, 16, 4, 2), UnitTile(16, 32, 16, 4, 2)
    monkeypatch.setattr(codec_sweep, "unit_candidates", lambda channels, columns: [good, wrong])
    monkeypatch.setitem(UNITS, 48, (good,) * 4)
    launches = step.launches()
    assert [launch.unit.channels for launch in launches if launch.wrapper == "fused_unit"] == [48] * 3
    names = layer_names(step.codec)
    assert all(launch.flops and launch.nbytes and id(launch.unit) in names for launch in launches if launch.unit)
    (group,) = groups(step.units())
    assert group.key == 48 and [*group.counts.values()] == [2, 1]
    figures = time_tiles(group, ROWS, workspace)
    verdicts = {tuple(row["tile"] or ()): row["bits"] for row in figures["tiles"]}
    assert set(verdicts) == {(), tuple(good)} and verdicts[()] == "same"
    assert not verdicts[tuple(good)].startswith("WRONG"), verdicts
    assert "AssertionError" in figures["errors"][str([*wrong])]


def test_units_are_one_launch_where_that_gains() -> None:
    tile = UnitTile(64, 32, 32, 4, 4)
    two, one = {"tile": None, "us": 10.0, "bits": "same"}, {"tile": [*tile], "us": 8.0, "bits": "same"}
    wrong = one | {"us": 5.0, "bits": "WRONG by 1.0e+00"}
    slow = one | {"us": 9.9}
    units = {"8": {"96": {"tiles": [wrong, one, two]}}, "128": {"96": {"tiles": [slow, two]}}}
    table = best_table(units, UNITS, UnitTile)
    assert table == {192: UNITS[192], 96: (UNITS[96][0], tile, UNITS[96][2], None)}


def test_candidates_for_units_fit_their_channels() -> None:
    for channels in UNITS:
        for columns in (640, 5120, 20480, 245760):
            found = unit_candidates(channels, columns)
            assert found and len({*found}) == len(found)
            for tile in found:
                assert channels % tile.depth == 0 and channels % tile.outputs == 0, (channels, tile)
                assert tile.stages * (tile.columns + channels) * tile.depth * 2 <= BLOCK_BYTES[90]


@pytest.mark.parametrize("columns", [8, 32, 128, 4096])
def test_candidates_fit_on_the_gpu(columns: int) -> None:
    for shape in TILES:
        taps, inputs, outputs = shape
        for tile in candidates(shape, columns, may_split=True):
            assert (tile.stages - 1) * (tile.rows + tile.outputs + tile.extra) * tile.depth * 2 <= BLOCK_BYTES[90]
            assert not tile.extra or (tile.splits == 1 and tile.outputs + tile.extra == outputs)
            assert inputs % tile.depth == 0 or (taps == 1 and not tile.extra), (shape, tile)
        assert all(tile.splits == 1 for tile in candidates(shape, columns, may_split=False))


def test_the_table_takes_the_fastest_right_tile_if_it_gains() -> None:
    shape = (1, 512, 3072)
    now = {"tile": [*TILES[shape][1]], "us": 10.0, "bits": "same"}
    wrong = {"tile": [16, 16, 0, 64, 1, 4, 4], "us": 5.0, "bits": "off by 1.0e-05"}  # its sums have another order
    faster = {"tile": [16, 64, 0, 64, 1, 4, 4], "us": 8.0, "bits": "same"}
    table = best_table({"8": {str(shape): {"current": now, "tiles": [wrong, faster, now]}}}, TILES, Tile)
    assert table[shape] == (TILES[shape][0], Tile(*faster["tile"]), *TILES[shape][2:])
    assert {key: tiles for key, tiles in table.items() if key != shape} == {
        key: tiles for key, tiles in TILES.items() if key != shape
    }


def test_everything_that_is_timed_is_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cpu":
        pytest.skip("the interpreter compiles nothing")
    monkeypatch.setattr(codec_launches, "compile_programs", lambda programs, *rest: None)
    monkeypatch.setattr(codec_sweep, "STEP_ROWS", (8,))
    assert compile_all([8], 8, 90, 1)["programs"] > 100
