"""The vocoder's last convolution: one output channel, clamped and rounded to PCM16. It reads a ring, as in conv.py."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from oscine.kernels.conv import Conv, Rows, check_input
from oscine.kernels.shared import place_columns, sum_of_rows

_MAX_LANES = 32


@triton.jit(do_not_specialize=["size", "columns"])
def _last_conv(
    x, weight, bias, slots, positions, samples, pcm16, size, columns, in_stride, in_places,
    inputs: tl.constexpr, taps: tl.constexpr, has_samples: tl.constexpr, block_m: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Channels are added up in `block_c` lanes, which are added at the end: that takes exchanges between threads."""
    m = tl.program_id(0) * block_m + tl.arange(0, block_m)
    c = tl.arange(0, block_c)
    live = m < size
    _, slot, column = place_columns(m, size, columns, slots, positions)
    lanes = tl.zeros((block_m, block_c), tl.float32)
    for tap in tl.static_range(taps):
        source = slot * in_stride + ((column - (taps - 1 - tap)) & (in_places - 1)) * inputs
        for part in tl.static_range(inputs // block_c):
            tile = tl.load(x + source[:, None] + (part * block_c + c)[None, :])
            factors = tl.load(weight + tap * inputs + part * block_c + c)
            lanes = tl.fma(tile.to(tl.float32), tl.broadcast_to(factors.to(tl.float32)[None, :], lanes.shape), lanes)
    sample = tl.minimum(tl.maximum(sum_of_rows(lanes) + tl.load(bias), -1.0), 1.0)
    if has_samples:
        tl.store(samples + m, sample, mask=live)
    # Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even.
    whole = (sample * 32767.0 + 12582912.0) - 12582912.0
    tl.store(pcm16 + m, whole.to(tl.int16), mask=live)


def last_conv(layer: Conv, x: Tensor, rows: Rows, *, pcm16_out: Tensor, samples_out: Tensor | None = None) -> None:
    """One output channel: samples in -1..1, as PCM16 and optionally as floats; both [rows, columns]."""
    size = len(rows) * layer.columns
    assert len(layer.weight) == 1 and layer.bias is not None and layer.dilation == 1, layer.weight.shape
    check_input(layer, x, size)
    shape = (len(rows), layer.columns)
    assert pcm16_out.shape == shape and pcm16_out.dtype == torch.int16 and pcm16_out.is_contiguous(), pcm16_out.shape
    assert samples_out is None or (samples_out.shape == shape and samples_out.is_contiguous()), shape
    block, warps = (32, 4) if len(rows) < 16 else (128, 2)  # the fastest on an H200
    _last_conv[(triton.cdiv(size, block),)](
        x, layer.weight, layer.bias, rows.slot, rows.position,
        layer.bias if samples_out is None else samples_out, pcm16_out,
        size, layer.columns, x.stride(0), x.shape[1],
        inputs=layer.inputs, taps=layer.taps, has_samples=samples_out is not None, block_m=block,
        block_c=min(layer.inputs & -layer.inputs, _MAX_LANES), num_warps=warps,
        enable_fp_fusion=False,  # sample * 32767 is rounded separately, as in audio.pcm16
    )  # fmt: skip
