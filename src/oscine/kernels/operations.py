"""The operations of a decode step behind one interface: Triton here, CUDA C++ in `kernels/cuda/operations.py`.

Both round alike (the kernels' files state how). No operation allocates or synchronizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oscine.kernels.attention import PagedCache, QkvNorms, predictor_attention, talker_attention
from oscine.kernels.embed import gather
from oscine.kernels.linear import SplitKScratch, linear
from oscine.kernels.norm import rms_norm
from oscine.kernels.sample import Draws, FirstCode, sample


@dataclass(frozen=True, slots=True)
class Following:
    """The predictor's next input by code: x[r] = inputs[code]. Unless other rows run with it, also the first layer's
    projection of it: qkv[r] = first_qkv[code]."""

    inputs: Tensor  # [codes, width]
    x: Tensor
    first_qkv: Tensor | None = None  # [codes, q k v]
    qkv: Tensor | None = None


class Operations(Protocol):
    def product_input(self, buffer: Tensor, rows: int, width: int) -> Tensor:
        """Returns a view of the buffer that another operation writes and a product reads, in the product's own layout.
        The buffer has `padded_rows` rows."""

    def prepare(self, weight: Tensor) -> Weight:
        """Converts a weight to the form that the products of a layer take; other products take bf16."""

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        out: Tensor,
        *,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        glu: bool = False,
    ) -> None:
        """out = x @ weight.T, then bias, residual or SwiGLU. x is a `product_input` or [rows, columns]; the output of
        SwiGLU is a `product_input`."""

    def norm(self, x: Tensor, scale: Tensor, eps: float, out: Tensor) -> None:
        """out = RMSNorm of x."""

    def norm_linear(
        self, x: Tensor, scale: Tensor, eps: float, weight: Weight, out: Tensor, *, glu: bool = False
    ) -> None:
        """out = linear(norm(x))."""

    def talker_attention(self, qkv: Tensor, norms: QkvNorms, cache: PagedCache, slot: Tensor, out: Tensor) -> None:
        """Computes attention of one new position per row, over the blocks of a paged cache. `out` is a
        `product_input`."""

    def predictor_attention(
        self, qkv: Tensor, norms: QkvNorms, keys: Tensor, values: Tensor, position: int, out: Tensor, *, new: int = 1
    ) -> None:
        """Computes attention of `new` positions per sequence; all sequences are at the same position. `out` is a
        `product_input`."""

    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        draws: Draws,
        codes: Tensor,
        book: int,
        failed: Tensor,
        following: Following | None,
        *,
        first: FirstCode | None = None,
    ) -> None:
        """Draws codes[:, book] as kernels/sample.py does, and looks up what follows from it. `first` is for codebook
        0."""


class TritonOperations:
    """The operations on Triton kernels. `normed` is a buffer for the largest x of `norm_linear`."""

    talker_attention = staticmethod(talker_attention)
    predictor_attention = staticmethod(predictor_attention)
    norm = staticmethod(rms_norm)

    def __init__(self, normed: Tensor) -> None:
        self._normed = normed
        self._scratch = SplitKScratch.empty(normed.device, rows=len(normed))

    def product_input(self, buffer: Tensor, rows: int, width: int) -> Tensor:
        return buffer.flatten()[: rows * width].view(rows, width)

    def prepare(self, weight: Tensor) -> Weight:
        return weight

    def linear(
        self,
        x: Tensor,
        weight: Weight,
        out: Tensor,
        *,
        residual: Tensor | None = None,
        bias: Tensor | None = None,
        glu: bool = False,
    ) -> None:
        assert isinstance(weight, Tensor), "Triton's products have no FP8"
        linear(x, weight, out, self._scratch, residual=residual, bias=bias, glu=glu)

    def norm_linear(
        self, x: Tensor, scale: Tensor, eps: float, weight: Weight, out: Tensor, *, glu: bool = False
    ) -> None:
        normed = self._normed.flatten()[: x.numel()].view(x.shape)
        rms_norm(x, scale, eps, normed)
        self.linear(normed, weight, out, glu=glu)

    def sample(
        self,
        logits: Tensor,
        slots: Tensor,
        draws: Draws,
        codes: Tensor,
        book: int,
        failed: Tensor,
        following: Following | None,
        *,
        first: FirstCode | None = None,
    ) -> None:
        sample(logits, slots, draws, codes, book, failed, first=first)
        if following is not None:
            gather(following.inputs, codes[:, book], following.x)
            if following.first_qkv is not None and following.qkv is not None:
                gather(following.first_qkv, codes[:, book], following.qkv)


# --- FP8 weights: e4m3 with one scale per weight row, in the order of columns that the products read (`linear.cuh`).

_LARGEST = 448.0  # of e4m3
_GROUP = 64  # columns whose order is changed


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """A weight in e4m3: `values` [rows, inputs], each 64 columns in the order of lanes; `scale` fp32 [rows]."""

    values: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.values.shape


Weight = Tensor | Fp8Weight  # of a product


def quantize(weight: Tensor) -> Fp8Weight:
    """Scales each row so that its largest weight becomes the largest e4m3; all others are rounded to the nearest."""
    exact = weight.float()
    largest = exact.abs().amax(dim=1)
    scale = torch.where(largest > 0, largest / _LARGEST, torch.ones_like(largest))
    return Fp8Weight(_in_order_of_lanes((exact / scale[:, None]).to(torch.float8_e4m3fn)), scale)


def dequantized(weight: Fp8Weight) -> tuple[Tensor, Tensor]:
    """Returns the bf16 values that a product sees, in their own order, and the scales."""
    rows, inputs = weight.shape
    grouped = weight.values.view(torch.uint8).view(rows, inputs // _GROUP, 4, 2, 8).transpose(2, 3)
    return grouped.reshape(rows, inputs).view(torch.float8_e4m3fn).bfloat16(), weight.scale


def _in_order_of_lanes(values: Tensor) -> Tensor:
    rows, inputs = values.shape
    grouped = values.view(torch.uint8).view(rows, inputs // _GROUP, 2, 4, 8).transpose(2, 3)
    return grouped.reshape(rows, inputs).view(torch.float8_e4m3fn)
