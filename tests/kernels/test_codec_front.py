"""The codec's front kernels against the plain layers: one frame at a time equals the whole stream at once."""

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.measures import assert_same_roundings

pytest.importorskip("triton")

from oscine.kernels.codec_front import BOOKS, attend, depthwise_norm, dequantize, rope_turns
from oscine.kernels.conv import Rows
from oscine.model.layers import apply_rope, rope_angles

pytestmark = pytest.mark.slow

THETA = 10000.0


def ints(*values: int, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def random(*shape: int, device: torch.device, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def test_dequantize_sums_sixteen_entries_and_advances_the_counters(device: torch.device) -> None:
    size, channels = 8, 20
    tables = random(BOOKS * size, channels, device=device)
    codes = torch.randint(0, size, (3, BOOKS), generator=torch.Generator().manual_seed(0)).to(device)
    codes[2, 0] = 2150  # end of speech
    last = 2**31 - 1  # after it, a counter begins again
    frames = ints(5, 0, 2, last, device=device)
    rows = Rows(ints(2, 0, 3, device=device), ints(-1, -1, -1, device=device))
    ring = torch.zeros(4, 4, channels, dtype=torch.bfloat16, device=device)
    dequantize(codes, tables, rows, frames, ring, rope_turns(4, THETA, device), empty_angles(3, 4, device))
    assert rows.position.tolist() == [2, 5, last] and frames.tolist() == [6, 0, 3, 0]
    known = codes.clamp(max=size - 1) + torch.arange(BOOKS, device=device) * size
    written = torch.stack([ring[2, 2], ring[0, 1], ring[3, 3]])
    assert_same_roundings(written, tables[known].sum(1).bfloat16(), flips=0.05)  # few elements
    assert ring.abs().sum(-1).count_nonzero() == 3


def empty_angles(rows: int, dim: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = torch.full((2, rows, dim // 2), float("nan"), device=device)
    return cos, sin


def angles_of(positions: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = rope_angles(positions[None], dim, THETA, unbounded=True)
    return cos[0, 0].contiguous(), sin[0, 0].contiguous()


def test_dequantize_computes_the_angles_of_the_frame(device: torch.device) -> None:
    """Also at positions at which fp32 angles would be half a turn off."""
    dim, frames = 16, ints(0, 7, 10_000_000, device=device)
    expected = angles_of(frames.clone(), dim)
    angles = empty_angles(3, dim, device)
    codes = torch.zeros(3, BOOKS, dtype=torch.int64, device=device)
    rows = Rows(ints(0, 1, 2, device=device), ints(-1, -1, -1, device=device))
    ring = torch.zeros(3, 4, 20, dtype=torch.bfloat16, device=device)
    dequantize(codes, random(BOOKS * 8, 20, device=device), rows, frames, ring, rope_turns(dim, THETA, device), angles)
    for actual, plain in zip(angles, expected, strict=True):
        torch.testing.assert_close(actual, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("window", "frames", "begin"), [(72, 84, 0), (5, 14, 0), (5, 9, 10_000_000)])
def test_attention_covers_the_window_and_nothing_before_the_first_frame(
    window: int, frames: int, begin: int, device: torch.device
) -> None:
    """Two streams, one three frames ahead. Before `begin`, the window is filled with zeros."""
    heads, dim, ahead = 1, 16, 3
    qkv = random(2, frames, 3 * heads * dim, device=device).bfloat16()
    keys = torch.full((3, heads, window, dim), float("nan"), dtype=torch.bfloat16, device=device)
    values = keys.clone()
    if begin:
        keys.zero_(), values.zero_()
    outs = []
    slots = ints(2, 0, device=device)
    for frame in range(frames):
        out = torch.empty(2, heads * dim, dtype=torch.bfloat16, device=device)
        positions = ints(begin + frame, begin + frame - ahead, device=device)
        rows = Rows(slots, positions) if frame >= ahead else Rows(slots[:1], positions[:1])
        step = torch.stack([qkv[0, frame], qkv[1, frame - ahead]])
        angles = angles_of(rows.position, dim)
        attend(step[: len(rows)].contiguous(), keys, values, angles, rows, out[: len(rows)])
        outs.append(out)
    first = torch.stack([out[0] for out in outs])
    second = torch.stack([out[1] for out in outs[ahead:]])
    for stream, got in zip(qkv, (first, second), strict=True):
        q, k, v = stream[: len(got)].float().view(1, -1, 3, heads, dim).permute(2, 0, 3, 1, 4)
        cos, sin = rope_angles(torch.arange(begin, begin + len(got), device=device)[None], dim, THETA, unbounded=True)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin).bfloat16().float()
        silent = torch.zeros(1, heads, window if begin else 0, dim, device=device)
        k, v = torch.cat((silent, k), 2), torch.cat((silent, v), 2)
        at = torch.arange(k.shape[2], device=device) - silent.shape[2]
        query = torch.arange(len(got), device=device)[:, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=(at <= query) & (at > query - window))
        expected = mixed[0].transpose(0, 1).flatten(1)
        # Half a bf16 unit of values up to 4; angles may differ by an fp32 unit.
        torch.testing.assert_close(got.float(), expected, rtol=2**-8, atol=1e-4)


def test_depthwise_convolution_and_layer_norm(device: torch.device) -> None:
    channels, columns, taps = 20, 2, 7
    weight, bias = random(taps, channels, device=device, seed=1).bfloat16(), random(channels, device=device, seed=2)
    past = random(2, columns + taps - 1, channels, device=device).bfloat16()
    rows = Rows(ints(1, 3, device=device), ints(0, 6, device=device))
    ring = torch.full((4, 8, channels), 1e4, dtype=torch.bfloat16, device=device)
    for row, slot, position in ((0, 1, 0), (1, 3, 6)):
        ring[slot, (torch.arange(position * columns - taps + 1, (position + 1) * columns) % 8).to(device)] = past[row]
    out = torch.empty(4, channels, dtype=torch.bfloat16, device=device)
    depthwise_norm(ring, weight, bias, rows, columns, 1e-6, out)
    mixed = F.conv1d(past.float().transpose(1, 2), weight.float().T[:, None], bias, groups=channels).transpose(1, 2)
    expected = F.layer_norm(mixed, (channels,), eps=1e-6).bfloat16().flatten(0, 1)
    assert_same_roundings(out, expected, flips=0.05)  # few elements
