"""The operations of a decode step, behind one interface: Triton here, CUDA C++ in `kernels/cuda/operations.py`.

Both make the same roundings (the kernels' files state them). No operation allocates or synchronizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from oscine.kernels.attention import predictor_attention, talker_attention
from oscine.kernels.embed import gather
from oscine.kernels.fp8 import Weight
from oscine.kernels.linear import SplitKScratch, linear
from oscine.kernels.norm import rms_norm
from oscine.kernels.sample import Draws, FirstCode, sample


@dataclass(frozen=True, slots=True)
class Following:
    """The predictor's next input by code: x[r] = inputs[code]; and, unless other rows run beside it, what its first
    layer makes of it: qkv[r] = first_qkv[code]."""

    inputs: Tensor  # [codes, width]
    x: Tensor
    first_qkv: Tensor | None = None  # [codes, q k v]
    qkv: Tensor | None = None


class Operations(Protocol):
    def product_input(self, buffer: Tensor, rows: int, width: int) -> Tensor:
        """A view of the buffer for what another operation stores and a product reads, in the product's own layout. The
        buffer has `padded_rows` rows."""

    def prepare(self, weight: Tensor) -> Weight:
        """The form in which the products of a layer take their weight; other products take bf16."""

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

    def talker_attention(
        self,
        qkv: Tensor,
        q_norm: Tensor,
        k_norm: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        key_blocks: Tensor,
        value_blocks: Tensor,
        block_table: Tensor,
        position: Tensor,
        slot: Tensor,
        out: Tensor,
    ) -> None:
        """One new position per row, over the blocks of a paged cache. `out` is a `product_input`."""

    def predictor_attention(
        self,
        qkv: Tensor,
        q_norm: Tensor,
        k_norm: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        position: int,
        out: Tensor,
        *,
        new: int = 1,
    ) -> None:
        """`new` positions per sequence; all sequences are at the same position. `out` is a `product_input`."""

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
        """codes[:, book], as kernels/sample.py draws it, and what follows from it. `first` is for codebook 0."""


class TritonOperations:
    """`normed` is a buffer for the largest x of `norm_linear`."""

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
