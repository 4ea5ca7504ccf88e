"""Convolutions over rings against plain sums, for shapes that fill their tiles and shapes that do not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.measures import assert_same_roundings, graph_seconds

pytest.importorskip("triton")

from oscine.audio.clips import pcm16
from oscine.kernels import conv as module
from oscine.kernels import conv_tiles
from oscine.kernels.conv import Conv, Rows, Workspace, conv, last_conv
from oscine.kernels.conv_tiles import TILES, Tile

pytestmark = pytest.mark.slow

SLOTS = 5


def noise(*shape: int, device: torch.device, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(scale).to(device)


def make_layer(
    inputs: int, channels: int, columns: int, device: torch.device, *, taps: int = 1, phases: int = 1, **options
) -> Conv:
    depth = taps * inputs
    weight = noise(phases * channels, depth, device=device, seed=1, scale=depth**-0.5).bfloat16()
    bias = noise(phases * channels, device=device, seed=2, scale=0.3)
    if options.get("activation") == "snake":
        options["snake"] = noise(channels, device=device, seed=3).exp(), noise(channels, device=device, seed=4).exp()
    return Conv(weight, columns, bias=bias, taps=taps, phases=phases, **options)


def make_rows(device: torch.device, slots: tuple[int, ...] = (3, 0), positions: tuple[int, ...] = (0, 9)) -> Rows:
    vectors = (torch.tensor(values, dtype=torch.int32, device=device) for values in (slots, positions))
    return Rows(*vectors)


def make_ring(past: Tensor, rows: Rows, columns: int) -> Tensor:
    """past [rows, old and new columns, channels] in ring order; all other places hold values that must not be read."""
    _, length, channels = past.shape
    places = 1 << (length - 1).bit_length()
    ring = torch.full((SLOTS, places, channels), 1e4, dtype=torch.bfloat16, device=past.device)
    for values, slot, position in zip(past, rows.slot.tolist(), rows.position.tolist(), strict=True):
        first = position * columns + columns - length
        ring[slot, torch.arange(first, first + length, device=past.device) % places] = values
    return ring


def read_ring(ring: Tensor, rows: Rows, columns: int) -> Tensor:
    """The columns of this frame, [rows, columns, channels]."""
    read = []
    for slot, position in zip(rows.slot.tolist(), rows.position.tolist(), strict=True):
        at = torch.arange(position * columns, (position + 1) * columns, device=ring.device) % ring.shape[1]
        read.append(ring[slot, at])
    return torch.stack(read)


def plain(layer: Conv, past: Tensor) -> Tensor:
    """past [rows, old and new columns, inputs] -> sums [rows * columns * phases, channels]. In fp64: an fp32
    product on a GPU may round its inputs to TF32."""
    wide = past.double()
    weight = layer.weight.double().view(-1, layer.taps, layer.inputs)
    if layer.norm_eps is not None:
        wide = wide * wide.square().mean(-1, keepdim=True).add(layer.norm_eps).rsqrt()
    bias = None if layer.bias is None else layer.bias.double()
    y = F.conv1d(wide.transpose(1, 2), weight.transpose(1, 2), bias, dilation=layer.dilation)
    return y.transpose(1, 2).reshape(-1, layer.channels).float()


def empty(size: int, channels: int, device: torch.device) -> Tensor:
    return torch.full((size, channels), float("nan"), dtype=torch.bfloat16, device=device)


CASES = {
    "odd channels": {"inputs": 12, "channels": 6, "columns": 5, "taps": 7, "dilation": 3},
    "full tiles": {"inputs": 32, "channels": 64, "columns": 8, "taps": 3},
    "two phases": {"inputs": 24, "channels": 12, "columns": 4, "taps": 2, "phases": 3},
    "a split sum": {"inputs": 64, "channels": 16, "columns": 3, "taps": 9},
}


@pytest.mark.parametrize("case", CASES)
def test_a_frame_of_two_streams_from_ring_to_ring(case: str, device: torch.device) -> None:
    rows = make_rows(device)
    layer = make_layer(**CASES[case], device=device, activation="snake")
    past = noise(2, layer.columns + (layer.taps - 1) * layer.dilation, layer.inputs, device=device).bfloat16()
    ring, columns = make_ring(past, rows, layer.columns), layer.columns * layer.phases
    raw = empty(2 * columns, layer.channels, device)
    out = torch.zeros(SLOTS, 1 << columns.bit_length(), layer.channels, dtype=torch.bfloat16, device=device)
    workspace = Workspace([layer], len(rows), device)
    assert (layer.tile(2).splits > 1) == (case == "a split sum")
    conv(layer, ring, rows, workspace, raw=raw, out=out)
    assert_same_roundings(raw, plain(layer, past).bfloat16(), flips=0.05)  # few elements: one is a hundredth
    rate, depth = layer.snake
    wide = raw.float()
    snaked = (wide + (wide * rate).sin().square() * depth).bfloat16()
    assert_same_roundings(read_ring(out, rows, columns).flatten(0, 1), snaked)
    assert not out[[1, 2, 4]].any(), "a slot that is in no row was written"
    assert not workspace.arrivals.any()
    again = torch.zeros_like(out)
    conv(layer, ring, rows, workspace, out=again)
    assert torch.equal(again, out)


def ordered_operands(columns: int, device: torch.device, **options) -> tuple[Conv, Tensor]:
    """A layer and x. Products are integers; sums depend on the order of the nine blocks of 64 inputs, but not on the
    order within a block: every second block is many times larger, and the next such block cancels it."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-8, 9, (48, 9, 64), generator=generator).float()
    weight[:, 1::2] = weight[:, :1] * 2.0**21 * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
    layer = make_layer(576, 48, 1, device, **options)
    layer.weight.copy_(weight.flatten(1))
    return layer, torch.randint(-8, 9, (columns, 64), generator=generator).repeat(1, 9).bfloat16().to(device)


def first_rows(layer: Conv, x: Tensor, count: int) -> Tensor:
    slots = tuple(range(count))
    rows, workspace = make_rows(x.device, slots, slots), Workspace([layer], count, x.device)
    out = empty(count, 48, x.device)
    conv(layer, x[:count], rows, workspace, out=out)
    return out


def test_parts_of_a_sum_are_added_alike_by_several_programs_and_by_one(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = ordered_operands(10, device)
    tiles = {
        "several": Tile(16, 32, 0, 64, 3, 4, 2),
        "one": Tile(64, 16, 0, 64, 3, 4, 2, serial=True),
        "other parts": Tile(16, 32, 0, 64, 2, 4, 2),
    }
    outs = {}
    for name, tile in tiles.items():
        monkeypatch.setattr(module, "tuned_tile", lambda shape, rows: tile)  # noqa: B023
        outs[name] = first_rows(layer, x, 10)
    assert torch.equal(outs["several"], outs["one"])
    assert not torch.equal(outs["several"], outs["other parts"])


@pytest.mark.parametrize("options", [{}, {"norm_eps": 1e-5}], ids=["parts", "norm"])
def test_a_row_has_the_same_sums_in_any_batch(
    options: dict, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv_tiles, "FULL_GPU", 3)  # many rows add up the parts in one program
    layer, x = ordered_operands(192, device, **options)
    tiles = [layer.tile(count) for count in (1, 17, 192)]
    assert len({tile.rows for tile in tiles}) == 3 and len({tile.serial for tile in tiles}) == (1 if options else 2)
    whole = first_rows(layer, x, 192)
    for count in (1, 3, 8, 17, 64):
        assert torch.equal(first_rows(layer, x, count), whole[:count]), count


@pytest.mark.parametrize("inputs", [4, 24, 96])
def test_a_row_has_the_same_samples_in_any_batch(inputs: int, device: torch.device) -> None:
    layer = make_layer(inputs, 1, 20, device, taps=7)
    ring = noise(17, 32, inputs, device=device).bfloat16()
    outs = {}
    for count in (1, 3, 17):
        rows = make_rows(device, tuple(range(count)), (0,) * count)
        pcm, outs[count] = (
            torch.empty(count, 20, dtype=torch.int16, device=device),
            torch.empty(count, 20, device=device),
        )
        last_conv(layer, ring, rows, pcm16_out=pcm, samples_out=outs[count])
    assert all(torch.equal(out, outs[17][:count]) for count, out in outs.items())


def test_96_channels_are_computed_as_64_and_32(device: torch.device) -> None:
    rows = make_rows(device, tuple(range(5)), (4, 0, 7, 1, 2))
    layer = make_layer(96, 96, 3, device, taps=7, dilation=9, activation="snake")
    assert layer.tile(len(rows)).extra == 32
    past = noise(5, 3 + 54, 96, device=device).bfloat16()
    raw, out = empty(15, 96, device), empty(15, 96, device)
    conv(layer, make_ring(past, rows, 3), rows, Workspace([layer], 5, device), raw=raw, out=out)
    assert_same_roundings(raw, plain(layer, past).bfloat16())
    assert out.isfinite().all()


@pytest.mark.parametrize(("inputs", "channels"), [(32, 64), (20, 36)])
def test_norm_and_swiglu(inputs: int, channels: int, device: torch.device) -> None:
    rows = make_rows(device)
    layer = make_layer(inputs, channels, 1, device, norm_eps=1e-5, activation="swiglu")
    x, out = noise(2, inputs, device=device, scale=3.0).bfloat16(), empty(2, channels // 2, device)
    conv(layer, x, rows, Workspace([layer], 2, device), out=out)
    gate, up = plain(layer, x[:, None]).view(2, -1, 2).unbind(-1)
    assert_same_roundings(out, (F.silu(gate) * up).bfloat16(), flips=0.05)  # few elements


def test_gelu_and_a_residual_in_place(device: torch.device) -> None:
    rows = make_rows(device)
    up, down = make_layer(24, 96, 2, device, activation="gelu"), make_layer(96, 24, 2, device)
    workspace = Workspace([up, down], 2, device)
    x, inner = noise(4, 24, device=device).bfloat16(), empty(4, 96, device)
    conv(up, x, rows, workspace, out=inner)
    assert_same_roundings(inner, F.gelu(plain(up, x[:, None]).bfloat16().float()).bfloat16())
    expected = (x.float() + plain(down, inner[:, None])).bfloat16()
    conv(down, inner, rows, workspace, residual=x, raw=x)
    assert_same_roundings(x, expected, flips=0.05)


def test_samples_are_clamped_and_rounded_as_pcm16(device: torch.device) -> None:
    rows = make_rows(device)
    layer = make_layer(6, 1, 40, device, taps=7)
    past = noise(2, 46, 6, device=device).bfloat16()
    out, samples = torch.empty(2, 40, dtype=torch.int16, device=device), torch.empty(2, 40, device=device)
    last_conv(layer, make_ring(past, rows, 40), rows, pcm16_out=out, samples_out=samples)
    expected = plain(layer, past).view(2, 40)
    assert (expected.abs() > 1).any()
    torch.testing.assert_close(samples, expected.clamp(-1, 1), rtol=0, atol=1e-5)  # sums in another order
    np.testing.assert_array_equal(out.cpu().numpy(), pcm16(samples.cpu().numpy()))


def test_every_tuned_tile_fits_its_shape() -> None:
    for (taps, inputs, outputs), tiles in TILES.items():
        for tile in tiles:
            assert inputs % tile.depth == 0
            assert not tile.extra or (tile.outputs + tile.extra == outputs and tile.splits == 1)
            assert tile.splits <= taps * inputs // tile.depth
            assert tile.stages * (tile.rows + tile.outputs + tile.extra) * tile.depth * 2 <= 227 * 1024  # shared memory


PUBLISHED = [  # taps, inputs, channels, columns
    *((7, 1024, 1536, 4), (7, 768, 768, 32), (7, 384, 384, 160), (7, 192, 192, 640), (7, 96, 96, 1920)),
    *((1, 96, 96, 1920), (1, 1024, 4096, 4), (1, 4096, 1024, 4)),
]


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [1, 8, 32, 128])
@pytest.mark.parametrize("shape", PUBLISHED)
def test_published_shapes(shape: tuple[int, int, int, int], batch: int, device: torch.device) -> None:
    taps, inputs, channels, columns = shape
    rows = Rows(*(torch.arange(batch, dtype=torch.int32, device=device) for _ in range(2)))
    layer = make_layer(inputs, channels, columns, device, taps=taps, activation="snake")
    past = noise(batch, columns + taps - 1, inputs, device=device).bfloat16()
    places = 1 << (columns + taps - 2).bit_length()
    ring = torch.zeros(batch, places, inputs, dtype=torch.bfloat16, device=device)
    for row in range(batch):
        at = torch.arange(row * columns - taps + 1, (row + 1) * columns, device=device) % places
        ring[row, at] = past[row]
    x = past.flatten(0, 1) if taps == 1 else ring
    raw, out = (empty(batch * columns, channels, device) for _ in range(2))
    workspace = Workspace([layer], batch, device)
    conv(layer, x, rows, workspace, raw=raw, out=out)
    expected = plain(layer, past)
    error = (raw.float() - expected).norm() / expected.norm()
    assert error < 3e-3, error  # bf16 keeps 8 bits: half a unit is 2e-3 at most
    seconds = graph_seconds(lambda: conv(layer, x, rows, workspace, raw=raw, out=out))
    flops = 2 * batch * columns * channels * taps * inputs
    print(f"\nconv {shape} x {batch}: {seconds * 1e6:.1f} us, {flops / seconds * 1e-12:.0f} TFLOP/s")
