"""Norms, RoPE, attention and MLPs in plain PyTorch, shared by every transformer of the model.

A stack keeps no state: keys and values live in an AttentionCache that the caller passes in.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.model.config import StackConfig


class AttentionCache(Protocol):
    """Keys and values of earlier positions, as a stack uses them during one forward."""

    positions: Tensor  # [batch, new rows]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Stores the new keys and values, [batch, kv heads, rows, head_dim]; returns the attention of each query."""


def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Computes softmax(q k / sqrt(dim)) v over grouped heads; `mask`, bool or additive, has [batch, heads, rows,
    keys]."""
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def normed(x: Tensor, eps: float) -> Tensor:
    """Divides x by its root mean square, in fp32, and rounds to x's dtype."""
    # F.rms_norm takes four times as long on a CPU for rows of this size.
    wide = x.float()
    return (wide * wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).to(x.dtype)


class RMSNorm(nn.Module):
    """Normalizes in fp32, rounds to the activation dtype, then multiplies by the weight, as the official model does."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, self.eps) * self.weight


class FusedLinear(nn.Linear):
    """Joins several bias-free projections of one input in one matrix, with `heights` rows each."""

    def __init__(self, width: int, heights: tuple[int, ...]) -> None:
        super().__init__(width, sum(heights), bias=False)
        self.heights = heights


def rope_frequencies(head_dim: int, theta: float, device: torch.device) -> Tensor:
    """Returns radians per position, [head_dim / 2] in fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    return 1.0 / theta**exponents


def rope_angles(positions: Tensor, head_dim: int, theta: float, *, unbounded: bool) -> tuple[Tensor, Tensor]:
    """Returns cos and sin, [batch, 1, rows, head_dim / 2], in fp32.

    The official angles are fp32 products, which lose precision at large positions; bounded stacks do the same, for
    parity. `unbounded` stacks (a codec stream has no last frame) multiply in fp64, so precision does not decay.
    """
    wide = torch.float64 if unbounded else torch.float32
    angles = positions[:, None, :, None].to(wide) * rope_frequencies(head_dim, theta, positions.device).to(wide)
    return angles.cos().float(), angles.sin().float()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the half-split rotation; x is [batch, heads, rows, head_dim], cos and sin are in x's dtype."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


class Attention(nn.Module):
    qk_weight: Tensor

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        dim = config.head_dim
        self.heads, self.kv_heads, self.head_dim, self.eps = config.heads, config.kv_heads, dim, config.eps
        self.qk_norm = config.qk_norm
        self.qkv = FusedLinear(config.width, (config.heads * dim, config.kv_heads * dim, config.kv_heads * dim))
        self.out = nn.Linear(config.heads * dim, config.width, bias=False)
        if config.qk_norm:
            self.q_norm, self.k_norm = RMSNorm(dim, config.eps), RMSNorm(dim, config.eps)

    def prepare(self) -> None:
        """Joins the loaded norm weights of q and k, so that one pass normalizes all query and key heads."""
        if self.qk_norm:
            q, k = self.q_norm.weight.data, self.k_norm.weight.data
            weight = torch.cat((q.expand(self.heads, -1), k.expand(self.kv_heads, -1)))[:, None]
            self.register_buffer("qk_weight", weight, persistent=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: AttentionCache, layer: int) -> Tensor:
        batch, rows, _ = x.shape
        heads = self.qkv(x).view(batch, rows, self.heads + 2 * self.kv_heads, self.head_dim).transpose(1, 2)
        qk, v = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        if self.qk_norm:
            qk = normed(qk, self.eps) * self.qk_weight
        q, k = apply_rope(qk, *rope).split((self.heads, self.kv_heads), dim=1)
        mixed = cache.attend(layer, q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, -1))


class SwiGLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up = FusedLinear(width, (inner, inner))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class GeluMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class LayerScale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Layer(nn.Module):
    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.attention_scale = LayerScale(config.width) if config.layer_scale else nn.Identity()
        self.mlp_norm = _norm(config)
        self.mlp = (SwiGLU if config.mlp == "swiglu" else GeluMLP)(config.width, config.inner)
        self.mlp_scale = LayerScale(config.width) if config.layer_scale else nn.Identity()

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: AttentionCache, layer: int) -> Tensor:
        x = x + self.attention_scale(self.attention(self.attention_norm(x), rope, cache, layer))
        return x + self.mlp_scale(self.mlp(self.mlp_norm(x)))


class Stack(nn.Module):
    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = _norm(config) if config.final_norm else nn.Identity()

    def forward(self, x: Tensor, cache: AttentionCache) -> Tensor:
        """x [batch, rows, width], rows at `cache.positions`."""
        config = self.config
        cos, sin = rope_angles(cache.positions, config.head_dim, config.theta, unbounded=config.window is not None)
        rope = cos.to(x.dtype), sin.to(x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, rope, cache, index)
        return self.norm(x)


def _norm(config: StackConfig) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.width, config.eps)
    return nn.LayerNorm(config.width, eps=config.eps)
