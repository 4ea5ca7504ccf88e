"""A residual unit in one launch against the same unit in two, and against plain sums."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.measures import BF16_ULP, graph_seconds

pytest.importorskip("triton")

from oscine.kernels import residual_unit as module
from oscine.kernels.conv import Conv, Rows, Workspace, conv
from oscine.kernels.conv_tiles import UNITS, UnitTile, unit_tile
from oscine.kernels.residual_unit import UnitLayers, fused_unit, residual_unit

pytestmark = pytest.mark.slow

SLOTS = 5
TILES = {
    16: UnitTile(64, 16, 16, 4, 2),
    48: UnitTile(64, 16, 16, 4, 3),
    96: UnitTile(64, 32, 32, 4, 4),
    192: UnitTile(64, 64, 64, 4, 3),
}


def noise(*shape: int, device: torch.device, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(scale).to(device)


def make_layer(channels: int, columns: int, taps: int, dilation: int, device: torch.device, seed: int) -> Conv:
    depth = taps * channels
    return Conv(
        noise(channels, depth, device=device, seed=seed, scale=depth**-0.5).bfloat16(),
        columns,
        bias=noise(channels, device=device, seed=seed + 1, scale=0.3),
        taps=taps,
        dilation=dilation,
        activation="snake",
        snake=tuple(noise(channels, device=device, seed=seed + 2 + i, scale=0.5).exp() for i in range(2)),
    )


def make_unit(channels: int, columns: int, device: torch.device, dilation: int = 3) -> UnitLayers:
    return UnitLayers(
        make_layer(channels, columns, 7, dilation, device, seed=10),
        make_layer(channels, columns, 1, 1, device, seed=20),
    )


class Streams:
    """Rings and a residual of streams at these positions."""

    def __init__(self, unit: UnitLayers, slots: tuple[int, ...], positions: tuple[int, ...]) -> None:
        device, columns = unit.conv1.weight.device, unit.conv1.columns
        vectors = (torch.tensor(values, dtype=torch.int32, device=device) for values in (slots, positions))
        self.unit, self.rows = unit, Rows(*vectors)
        places = 1 << (columns + 6 * unit.conv1.dilation - 1).bit_length()
        self.x = noise(SLOTS, places, unit.channels, device=device, seed=1).bfloat16()
        self.residual = noise(len(slots) * columns, unit.channels, device=device, seed=2).bfloat16()
        self.out = torch.zeros(SLOTS, 1 << columns.bit_length(), unit.channels, dtype=torch.bfloat16, device=device)

    def run(self, tile: UnitTile | None, last: bool = False) -> tuple[Tensor, Tensor]:
        """The residual afterwards, and the ring."""
        x, residual, out = self.x.clone(), self.residual.clone(), self.out.clone()
        raw = None if last else residual
        if tile:
            fused_unit(self.unit, tile, x, self.rows, residual=residual, raw=raw, out=out)
        else:
            inner, first, second = torch.empty_like(residual), self.unit.conv1, self.unit.conv2
            workspace = Workspace([first, second], len(self.rows), x.device)
            conv(first, x, self.rows, workspace, out=inner)
            conv(second, inner, self.rows, workspace, residual=residual, raw=raw, out=out)
        assert torch.equal(x, self.x)
        return residual, out

    def plain(self) -> tuple[Tensor, Tensor]:
        """y and its snake, [columns of all rows, channels]. Sums in fp64."""
        first, second = self.unit.conv1, self.unit.conv2
        past = []
        for slot, position in zip(self.rows.slot.tolist(), self.rows.position.tolist(), strict=True):
            begin = position * first.columns - 6 * first.dilation
            at = torch.arange(begin, (position + 1) * first.columns, device=self.x.device)
            past.append(self.x[slot, at % self.x.shape[1]])
        weight = first.weight.double().view(-1, 7, first.inputs).transpose(1, 2)
        wide = F.conv1d(
            torch.stack(past).double().transpose(1, 2), weight, first.bias.double(), dilation=first.dilation
        )
        inner = snaked(first, wide.transpose(1, 2).flatten(0, 1).bfloat16())
        y = inner.double() @ second.weight.double().T + second.bias.double() + self.residual.double()
        return y.bfloat16(), snaked(second, y.bfloat16())

    def written(self, out: Tensor) -> Tensor:
        columns, read = self.unit.conv1.columns, []
        for slot, position in zip(self.rows.slot.tolist(), self.rows.position.tolist(), strict=True):
            at = torch.arange(position * columns, (position + 1) * columns, device=out.device) % out.shape[1]
            read.append(out[slot, at])
        return torch.cat(read)


def snaked(layer: Conv, y: Tensor) -> Tensor:
    rate, depth = layer.snake
    wide = y.float()
    return (wide + (wide * rate).sin().square() * depth).bfloat16()


def assert_nearly_equal(actual: Tensor, expected: Tensor) -> None:
    """Equal, but for what an fp32 sum in another order moves across a rounding border. A change of one element of
    `inner` touches all channels of its column, and the second snake may double a change."""
    assert (actual != expected).float().mean() <= 0.05
    largest = (actual.float() - expected.float()).abs().max() / expected.float().abs().max()
    error = (actual.float() - expected.float()).norm() / expected.float().norm()
    assert largest <= 2 * BF16_ULP and error < BF16_ULP / 8, (largest, error)


@pytest.mark.parametrize("channels", TILES)
def test_one_launch_equals_two(channels: int, device: torch.device) -> None:
    """37 columns of three rows: programs that begin and end within a row, and one that is not full."""
    streams = Streams(make_unit(channels, 37, device), (3, 0, 4), (0, 9, 5))
    (residual, out), (expected, expected_out) = streams.run(TILES[channels]), streams.run(None)
    assert_nearly_equal(residual, expected)
    assert_nearly_equal(out, expected_out)
    assert not out[[1, 2]].any(), "a slot that is in no row was written"


@pytest.mark.parametrize("channels", TILES)
def test_one_launch_rounds_where_pytorch_does(channels: int, device: torch.device) -> None:
    streams = Streams(make_unit(channels, 20, device, dilation=9), (2, 1), (3, 40))
    residual, out = streams.run(TILES[channels])
    y, after = streams.plain()
    assert_nearly_equal(residual, y)
    assert_nearly_equal(streams.written(out), after)


@pytest.mark.parametrize("tile", [UnitTile(16, 16, 16, 4, 2), UnitTile(32, 16, 16, 4, 2), UnitTile(128, 16, 16, 8, 2)])
def test_results_hardly_depend_on_the_tile(tile: UnitTile, device: torch.device) -> None:
    streams = Streams(make_unit(48, 11, device), (0, 4), (1, 0))
    for actual, expected in zip(streams.run(tile), streams.run(TILES[48]), strict=True):
        assert_nearly_equal(actual, expected)


def test_both_rings_wrap_within_a_frame(device: torch.device) -> None:
    streams = Streams(make_unit(48, 37, device), (1,), (5,))
    columns = torch.arange(5 * 37, 6 * 37)
    for ring in (streams.x, streams.out):
        assert len({*(columns // ring.shape[1]).tolist()}) > 1, "the frame does not cross the end of the ring"
    residual, out = streams.run(TILES[48])
    y, after = streams.plain()
    assert_nearly_equal(residual, y)
    assert_nearly_equal(streams.written(out), after)
    assert out[1].any(1).sum() == 37


def test_the_last_unit_leaves_the_residual_as_it_is(device: torch.device) -> None:
    streams = Streams(make_unit(48, 10, device), (2, 0), (1, 6))
    residual, out = streams.run(TILES[48], last=True)
    assert torch.equal(residual, streams.residual)
    assert torch.equal(out, streams.run(TILES[48])[1])


def test_a_unit_without_a_tile_is_two_launches(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(make_unit(48, 10, device), (2, 0), (1, 6))
    workspace = Workspace([streams.unit.conv1, streams.unit.conv2], 2, device)
    results = []
    for tile in (None, TILES[48]):
        monkeypatch.setattr(module, "unit_tile", lambda channels, rows: tile)  # noqa: B023
        residual, inner, out = streams.residual.clone(), torch.zeros_like(streams.residual), streams.out.clone()
        residual_unit(
            streams.unit, streams.x, streams.rows, workspace, residual=residual, raw=residual, inner=inner, out=out
        )
        assert inner.any() == (tile is None)
        assert torch.equal(residual, streams.run(tile)[0]) and torch.equal(out, streams.run(tile)[1])
        results.append(out)
    assert_nearly_equal(*results)


def test_shapes_are_checked(device: torch.device) -> None:
    streams = Streams(make_unit(16, 10, device), (0,), (0,))
    x, dense, out = streams.x, streams.residual, streams.out
    for wrong in (
        {"residual": dense[1:], "raw": dense, "out": out},
        {"residual": dense, "raw": dense[:, 1:], "out": out},
        {"residual": dense, "raw": dense, "out": out[:, :7]},
        {"residual": dense, "raw": dense, "out": x},
    ):
        with pytest.raises(AssertionError):
            fused_unit(streams.unit, TILES[16], x, streams.rows, **wrong)
    with pytest.raises(AssertionError):
        UnitLayers(streams.unit.conv2, streams.unit.conv1)


def test_every_tile_fits_its_channels() -> None:
    for channels, tiles in UNITS.items():
        for tile in filter(None, tiles):
            assert channels % tile.depth == 0 and channels % tile.outputs == 0, (channels, tile)
        assert [unit_tile(channels, rows) for rows in (1, 8, 32, 128)] == [*tiles]
    assert unit_tile(768, 8) is None


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [8, 32, 128])
@pytest.mark.parametrize(("channels", "columns"), [(192, 640), (96, 1920)])
def test_published_shapes(channels: int, columns: int, batch: int, device: torch.device) -> None:
    unit = make_unit(channels, columns, device, dilation=9)
    tile = unit_tile(channels, batch) or TILES[channels]
    rows = Rows(*(torch.arange(batch, dtype=torch.int32, device=device) for _ in range(2)))
    x, out, alone = (
        noise(batch, 1 << (columns + 53).bit_length(), channels, device=device, seed=seed).bfloat16()
        for seed in (1, 2, 2)
    )
    dense = noise(batch * columns, channels, device=device, seed=3).bfloat16()
    inner, raw, workspace = torch.empty_like(dense), dense.clone(), Workspace([unit.conv1, unit.conv2], batch, device)

    def two() -> None:
        conv(unit.conv1, x, rows, workspace, out=inner)
        conv(unit.conv2, inner, rows, workspace, residual=dense, raw=None, out=alone)

    two()
    fused_unit(unit, tile, x, rows, residual=raw, raw=raw, out=out)
    assert_nearly_equal(out, alone)
    one = graph_seconds(lambda: fused_unit(unit, tile, x, rows, residual=dense, raw=None, out=out))
    print(f"\n{channels} channels x {batch}: {one * 1e6:.1f} us, two launches {graph_seconds(two) * 1e6:.1f} us")
