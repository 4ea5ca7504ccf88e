"""FP8 weights: e4m3 with one scale per weight row, in the order of columns that the products read (`linear.cuh`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LARGEST = 448.0  # of e4m3
_GROUP = 64  # columns whose order is changed


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """`values`: e4m3 [rows, inputs], each 64 columns in the order of lanes. `scale`: fp32 [rows]."""

    values: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


Weight = Tensor | Fp8Weight  # of a product


def quantize(weight: Tensor) -> Fp8Weight:
    """The largest weight of a row becomes the largest e4m3; all others are rounded to the nearest."""
    exact = weight.float()
    largest = exact.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    return Fp8Weight(_in_order_of_lanes((exact / scale[:, None]).to(torch.float8_e4m3fn)), scale)


def dequantized(weight: Fp8Weight) -> tuple[Tensor, Tensor]:
    """The bf16 values that a product sees, in their own order, and the scales."""
    rows, inputs = weight.shape
    grouped = weight.values.view(torch.uint8).view(rows, inputs // _GROUP, 4, 2, 8).transpose(2, 3)
    return grouped.reshape(rows, inputs).view(torch.float8_e4m3fn).bfloat16(), weight.scale


def _in_order_of_lanes(values: Tensor) -> Tensor:
    rows, inputs = values.shape
    grouped = values.view(torch.uint8).view(rows, inputs // _GROUP, 2, 4, 8).transpose(2, 3)
    return grouped.reshape(rows, inputs).view(torch.float8_e4m3fn)
