"""The operations of a decode step in plain PyTorch, with the roundings that the kernels state and sums in fp64."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oscine.kernels.operations import Fp8Weight, dequantized, quantize
from oscine.kernels.sample import sample


def normed(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    exact = x.double()
    return (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)).float().bfloat16() * scale


def rotated(x: Tensor, scale: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [n, dim]; cos and sin [dim / 2] of their position."""
    x = normed(x, scale, eps)
    low, high = x.chunk(2, -1)
    return x * cos.bfloat16().repeat(2) + torch.cat((-high, low), -1) * sin.bfloat16().repeat(2)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [heads, dim], k and v [kv heads, positions, dim] -> [heads, dim]; one rounding."""
    k, v = (t.double().repeat_interleave(len(q) // len(k), 0) for t in (k, v))
    shares = torch.softmax(torch.einsum("hd,hpd->hp", q.double(), k) * q.shape[-1] ** -0.5, -1)
    return torch.einsum("hp,hpd->hd", shares, v).float().bfloat16()


class PlainOperations:
    """`noise` of each logit, as a share of it, shows where codes are near ties, which other roundings decide."""

    def __init__(self, *, fp8: bool = False, noise: float = 0.0) -> None:
        self._fp8, self._noise, self._generator = fp8, noise, torch.Generator().manual_seed(0)

    def product_input(self, buffer, rows, width):
        return buffer.flatten()[: rows * width].view(rows, width)

    def prepare(self, weight):
        return quantize(weight) if self._fp8 else weight

    def linear(self, x, weight, out, *, residual=None, bias=None, glu=False) -> None:
        values, scale = dequantized(weight) if isinstance(weight, Fp8Weight) else (weight, torch.ones(()))
        y = x.double() @ values.double().T * scale.double()
        y = (y if bias is None else y + bias.double()).float().bfloat16()
        if glu:
            gate, up = y.chunk(2, -1)
            y = F.silu(gate) * up
        out.copy_(y if residual is None else residual + y)

    def norm(self, x, scale, eps, out) -> None:
        out.copy_(normed(x, scale, eps))

    def norm_linear(self, x, scale, eps, weight, out, *, glu=False) -> None:
        self.linear(normed(x, scale, eps), weight, out, glu=glu)

    def sample(self, logits, slots, draws, codes, book, failed, following, *, first=None) -> None:
        if self._noise:
            logits = logits * (1 + self._noise * torch.randn(logits.shape, generator=self._generator))
        sample(logits, slots, draws, codes, book, failed, first=first)  # Triton's
        if following is not None:
            following.x.copy_(following.inputs[codes[:, book]])
            if following.qkv is not None:
                following.qkv.copy_(following.first_qkv[codes[:, book]])

    def talker_attention(self, qkv, norms, cache, slot, out) -> None:
        (q_norm, k_norm, eps, cos, sin), (key_blocks, value_blocks, block_table, position) = norms, cache
        _, kv_heads, size, dim = key_blocks.shape
        for row, owner in enumerate(slot.tolist()):
            if owner < 0:
                continue
            at, blocks = int(position[owner]), block_table[owner]
            q, k, v = self._heads(qkv[row], kv_heads, dim, q_norm, k_norm, eps, cos[at], sin[at])
            key_blocks[blocks[at // size], :, at % size] = k
            value_blocks[blocks[at // size], :, at % size] = v
            cached = (cache[blocks].transpose(1, 2).flatten(0, 1) for cache in (key_blocks, value_blocks))
            out[row] = attended(q, *(cache[: at + 1].transpose(0, 1) for cache in cached)).flatten()

    def predictor_attention(self, qkv, norms, keys, values, position, out, *, new=1) -> None:
        q_norm, k_norm, eps, cos, sin = norms
        kv_heads, dim = keys.shape[1], keys.shape[3]
        for row in range(len(qkv)):
            sequence, at = row // new, position + row % new
            q, k, v = self._heads(qkv[row], kv_heads, dim, q_norm, k_norm, eps, cos[at], sin[at])
            keys[sequence, :, at], values[sequence, :, at] = k, v
            out[row] = attended(q, keys[sequence, :, : at + 1], values[sequence, :, : at + 1]).flatten()

    @staticmethod
    def _heads(row, kv_heads, dim, q_norm, k_norm, eps, cos, sin) -> tuple[Tensor, Tensor, Tensor]:
        heads = row.view(-1, dim)
        q, k, v = heads.split((len(heads) - 2 * kv_heads, kv_heads, kv_heads))
        return rotated(q, q_norm, eps, cos, sin), rotated(k, k_norm, eps, cos, sin), v
