"""Makes the package's modules trainable. The parameters stay the same. What the modules compute once after loading
(`prepare`) is computed in each forward here, in fewer passes over memory, and the codec's encoder and decoder get
forwards that keep gradients. checks.py compares them with the plain modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from fused import PLAIN, TURN_EPS, Fused, per_row
from torch import Tensor, nn

from oscine.model.codec import Codec, ConvNeXt
from oscine.model.layers import Attention, AttentionCache, LayerScale, RMSNorm, SwiGLU, attention
from oscine.model.streaming import CausalConv, CausalUpsample, Snake


def make_trainable(module: nn.Module, fused: Fused = PLAIN) -> None:
    for part in module.modules():
        if isinstance(part, Snake):
            part.forward = _snake_forward(part, fused)  # type: ignore[method-assign,assignment]
        elif isinstance(part, CausalConv | CausalUpsample):
            part.forward = _conv_forward(part)  # type: ignore[method-assign,assignment]
        elif isinstance(part, Attention) and part.qk_norm:
            part.forward = _attention_forward(part, fused)  # type: ignore[method-assign]
        elif isinstance(part, RMSNorm):
            part.forward = _norm_forward(part)  # type: ignore[method-assign,assignment]
        elif isinstance(part, SwiGLU):
            part.forward = _swiglu_forward(part, fused)  # type: ignore[method-assign,assignment]
    module.requires_grad_(True)


def _snake_forward(part: Snake, fused: Fused) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        # Computed outside: parameters have static sizes for the compiler, which would recompile for every width.
        rate, depth = part.alpha.exp()[:, None], (1 / (part.beta.exp() + 1e-9))[:, None]
        return fused.snake(x, per_row(rate, len(x)), per_row(depth, len(x)))

    return forward


def _conv_forward(part: CausalConv | CausalUpsample) -> Callable[[Tensor, Any], Tensor]:
    """PyTorch's convolution: the backward of the package's own CPU product takes ten times as long."""

    def forward(x: Tensor, history: Any) -> Tensor:
        columns = x.shape[-1]
        joined = history.join(x, part.past) if part.past else x
        if isinstance(part, CausalUpsample):
            made = F.conv_transpose1d(joined, part.weight, part.bias, stride=part.rate)
            # A view would be copied by the next layer, forward and backward, or cause a recompilation.
            return made.narrow(-1, part.past * part.rate, columns * part.rate).contiguous()
        return F.conv1d(joined, part.weight, part.bias, dilation=part.step, groups=part.groups)

    return forward


def _attention_forward(part: Attention, fused: Fused) -> Callable[..., Tensor]:
    """Does what Attention.forward does, with norm and rotation of queries and keys fused."""
    assert part.eps == TURN_EPS, part.eps
    turned_heads = part.heads + part.kv_heads

    def forward(x: Tensor, rope: tuple[Tensor, Tensor], memory: AttentionCache, layer: int) -> Tensor:
        batch, rows, _ = x.shape
        heads = part.qkv(x).view(batch, rows, turned_heads + part.kv_heads, part.head_dim).transpose(1, 2)
        qk, v = heads.split((turned_heads, part.kv_heads), dim=1)
        q_weight, k_weight = part.q_norm.weight, part.k_norm.weight
        weight = torch.cat((q_weight.expand(part.heads, -1), k_weight.expand(part.kv_heads, -1)))[:, None]
        cos, sin = (angle.float() for angle in rope)
        turned = fused.normed_and_turned(qk, per_row(weight, batch), cos, sin)
        q, k = turned.split((part.heads, part.kv_heads), dim=1)
        if hasattr(part, "seen"):
            part.seen = (q, k)  # for guide.py
        mixed = memory.attend(layer, q, k, v)
        return part.out(mixed.transpose(1, 2).reshape(batch, rows, -1))

    return forward


def _norm_forward(part: RMSNorm) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        # In the dtype of x, as one kernel: autocast might widen it, and weights of another dtype prevent the fusion.
        with torch.autocast(x.device.type, enabled=False):
            return F.rms_norm(x, part.weight.shape, part.weight.to(x.dtype), part.eps)

    return forward


def _swiglu_forward(part: SwiGLU, fused: Fused) -> Callable[[Tensor], Tensor]:
    return lambda x: part.down(fused.gated(part.gate_up(x)))


def initialize(module: nn.Module, generator: torch.Generator, *, depth: int = 1) -> None:
    """Initializes every parameter that a checkpoint would fill. `depth` is the number of residual layers: projections
    into the residual stream start smaller by its square root."""
    for name, part in module.named_modules():
        if isinstance(part, RMSNorm):
            nn.init.ones_(part.weight)
        elif isinstance(part, LayerScale):
            nn.init.constant_(part.scale, 0.1)
        elif isinstance(part, ConvNeXt):
            nn.init.constant_(part.gamma, 0.1)
        elif isinstance(part, Snake):
            nn.init.zeros_(part.alpha)
            nn.init.zeros_(part.beta)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=0.1, generator=generator)
        elif isinstance(part, nn.Linear):
            writes = name.endswith((".out", ".down"))
            scale = part.in_features**-0.5 * ((2 * depth) ** -0.5 if writes else 1.0)
            nn.init.normal_(part.weight, std=scale, generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
            _initialize_conv(part, generator)


def _initialize_conv(conv: nn.Conv1d | nn.ConvTranspose1d, generator: torch.Generator) -> None:
    """Unit gain; a transposed convolution has kernel / stride taps in each output."""
    taps = conv.kernel_size[0]
    transposed = isinstance(conv, nn.ConvTranspose1d)
    fan_in = conv.in_channels * taps // conv.stride[0] if transposed else conv.in_channels // conv.groups * taps
    nn.init.normal_(conv.weight, std=fan_in**-0.5, generator=generator)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


class CausalMemory:
    """An AttentionCache (see layers.py) for whole sequences that start at position 0: causal attention, optionally over
    the last `window` positions. Sequences padded on the right need no mask."""

    def __init__(self, rows: int, device: torch.device, window: int | None = None) -> None:
        places = torch.arange(rows, device=device)
        self.positions = places[None]  # shared by all sequences, so angles are computed once
        self._mask: Tensor | None = None
        if window is not None and rows > window:
            back = places[:, None] - places
            self._mask = (back >= 0) & (back < window)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if k.dtype != v.dtype:  # under autocast, q and k are wider than v after the norm
            q, k = q.to(v.dtype), k.to(v.dtype)
        return attention(q, k, v, mask=self._mask, causal=self._mask is None)


class ZeroHistory:
    """Takes the place of streaming.History for whole sequences: the history is zeros, and nothing is kept."""

    def join(self, x: Tensor, length: int, dim: int = -1) -> Tensor:
        assert dim == -1, dim
        return F.pad(x, (length, 0))


def decode_latent(codec: Codec, latent: Tensor, seen: list[Tensor] | None = None) -> Tensor:
    """latent [batch, frames, codebook_dim] (the sum of the 16 entries, projected) -> samples [batch, frames * 1920].
    Like Codec.decode, with gradients and without the clamp. `seen` gets what enters the vocoder and what leaves each of
    its blocks."""
    history: Any = ZeroHistory()
    x = codec.pre_conv(latent.transpose(1, 2), history)
    memory = CausalMemory(latent.shape[1], latent.device, codec.config.decoder.stack.window)
    x = codec.stack_out(codec.stack(codec.stack_in(x.transpose(1, 2)), memory)).transpose(1, 2)
    for upsample, convnext in zip(codec.upsamples, codec.convnexts, strict=True):
        x = convnext(upsample(x, history), history)
    stages = [x]
    x = codec.vocoder_in(x, history)
    for block in codec.blocks:
        x = block(x, history)
        stages.append(x)
    if seen is not None:
        seen.extend(stages)
    x = codec.snake(x)
    # Autocast would round the samples to eight bits.
    with torch.autocast(x.device.type, enabled=False):
        return codec.vocoder_out(x.float(), history)[:, 0]
