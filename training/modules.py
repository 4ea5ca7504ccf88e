"""The package's modules made trainable. Their parameters stay what they are; what they compute once after loading
(`prepare`) is computed anew in each forward here, and the codec's two directions get forwards that keep gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.model.codec import Codec, ConvNeXt
from oscine.model.codec_encoder import CodecEncoder
from oscine.model.conv import CausalConv, CausalUpsample, Snake
from oscine.model.layers import Attention, LayerScale, RMSNorm, attention


def snake(x: Tensor, rate: Tensor, depth: Tensor) -> Tensor:
    wave = torch.sin(x * rate)
    return x + wave * wave * depth


def make_trainable(module: nn.Module, *, compiled: bool = False, narrow: int = 0) -> None:
    """`compiled`: the snake as one kernel, forward and backward, instead of eight passes over memory. `narrow`: the
    library is slow at convolutions of few channels; those of at most so many become one product each."""
    snake_of: Callable[..., Tensor] = _compiled_snake() if compiled else snake
    for part in module.modules():
        if isinstance(part, Snake):
            part.forward = _snake_forward(part, snake_of)  # type: ignore[method-assign,assignment]
        elif isinstance(part, Attention) and part.qk_norm:
            part.register_forward_pre_hook(_join_norm_weights)
        elif isinstance(part, CausalConv | CausalUpsample):
            part.forward = _conv_forward(part, narrow)  # type: ignore[method-assign,assignment]
    module.requires_grad_(True)


def _compiled_snake() -> Callable[..., Tensor]:
    """Plain where it cannot be compiled: a training is worth more than its speed."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    function: Callable[..., Tensor] = torch.compile(snake, dynamic=True)
    try:
        curve = torch.ones(4, 1, device=device, requires_grad=True)
        function(torch.ones(2, 4, 64, device=device), curve, curve).sum().backward()
    except Exception as error:
        print(f"the snake cannot be compiled here ({type(error).__name__}); it runs as it is", flush=True)
        return snake
    return function


def _snake_forward(part: Snake, snake_of: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    # The curves are made outside: parameters have fixed sizes for the compiler, and every width would be compiled anew.
    return lambda x: snake_of(x, part.alpha.exp()[:, None], (1 / (part.beta.exp() + 1e-9))[:, None])


def _conv_forward(part: CausalConv | CausalUpsample, narrow: int) -> Callable[[Tensor, Any], Tensor]:
    """The library's convolution: the package's own product for a CPU has a gradient that takes ten times as long."""

    def forward(x: Tensor, history: Any) -> Tensor:
        columns = x.shape[-1]
        joined = history.join(x, part.past) if part.past else x
        if isinstance(part, CausalUpsample):
            made = F.conv_transpose1d(joined, part.weight, part.bias, stride=part.rate)
            return made.narrow(-1, part.past * part.rate, columns * part.rate)
        if part.groups == 1 and part.weight.shape[1] <= narrow:
            return _tap_product(part, joined, columns)
        return F.conv1d(joined, part.weight, part.bias, dilation=part.step, groups=part.groups)

    return forward


def _tap_product(part: CausalConv, joined: Tensor, columns: int) -> Tensor:
    """The columns that each tap sees one above the other, times all taps' weights side by side."""
    taps = part.weight.shape[-1]
    seen = torch.cat([joined[..., tap * part.step :][..., :columns] for tap in range(taps)], dim=1)
    made = part.weight.transpose(1, 2).flatten(1) @ seen
    return made if part.bias is None else made + part.bias[:, None]


def _join_norm_weights(part: nn.Module, _: Any) -> None:
    assert isinstance(part, Attention)
    q, k = part.q_norm.weight, part.k_norm.weight
    part.qk_weight = torch.cat((q.expand(part.heads, -1), k.expand(part.kv_heads, -1)))[:, None]


def initialise(module: nn.Module, generator: torch.Generator, *, depth: int = 1) -> None:
    """Everything that the package leaves empty for a checkpoint to fill. `depth` is the number of residual layers:
    what writes into the residual stream starts smaller by its root."""
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
            _initialise_conv(part, generator)


def _initialise_conv(conv: nn.Conv1d | nn.ConvTranspose1d, generator: torch.Generator) -> None:
    """Unit gain; a transposed convolution has kernel / stride taps in each output."""
    taps = conv.kernel_size[0]
    transposed = isinstance(conv, nn.ConvTranspose1d)
    fan_in = conv.in_channels * taps // conv.stride[0] if transposed else conv.in_channels // conv.groups * taps
    nn.init.normal_(conv.weight, std=fan_in**-0.5, generator=generator)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


class CausalMemory:
    """A memory (see layers.Memory) for whole sequences that begin at position 0: plain causal attention, or over the
    last `window` positions. Sequences padded on the right need no mask."""

    def __init__(self, batch: int, rows: int, device: torch.device, window: int | None = None) -> None:
        places = torch.arange(rows, device=device)
        self.positions = places.expand(batch, -1)
        self._mask: Tensor | None = None
        if window is not None and rows > window:
            back = places[:, None] - places
            self._mask = (back >= 0) & (back < window)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if k.dtype != v.dtype:  # under autocast a norm leaves q and k wider than v
            q, k = q.to(v.dtype), k.to(v.dtype)
        return attention(q, k, v, mask=self._mask, causal=self._mask is None)


class ZeroHistory:
    """In the place of memory.History: every sequence is whole, so what came before is zeros, and nothing is kept."""

    def join(self, x: Tensor, length: int, dim: int = -1) -> Tensor:
        assert dim == -1, dim
        return F.pad(x, (length, 0))


def decode_latent(codec: Codec, latent: Tensor) -> Tensor:
    """latent [batch, frames, codebook_dim] (the sum of the 16 entries, projected) -> samples [batch, frames * 1920].
    As Codec.decode, with gradients and without the clamp."""
    history: Any = ZeroHistory()
    batch, frames, _ = latent.shape
    x = codec.pre_conv(latent.transpose(1, 2), history)
    memory = CausalMemory(batch, frames, latent.device, codec.config.decoder.stack.window)
    x = codec.stack_out(codec.stack(codec.stack_in(x.transpose(1, 2)), memory)).transpose(1, 2)
    for upsample, convnext in zip(codec.upsamples, codec.convnexts, strict=True):
        x = convnext(upsample(x, history), history)
    x = codec.vocoder_in(x, history)
    for block in codec.blocks:
        x = block(x, history)
    return codec.vocoder_out(codec.snake(x), history)[:, 0]


def encode_latent(encoder: CodecEncoder, samples: Tensor, window: int | None = None) -> Tensor:
    """samples [batch, frames * 1920] -> [batch, frames, width]. As CodecEncoder.forward up to the quantiser, with
    gradients; `window` bounds its attention to what it saw in training crops (positions of 40 ms)."""
    x = encoder.first(samples[:, None])
    for residual, down in zip(encoder.residuals, encoder.downs, strict=True):
        x = down(F.elu(residual(x)))
    x = encoder.last(F.elu(x)).transpose(1, 2)
    memory = CausalMemory(x.shape[0], x.shape[1], x.device, window)
    return encoder.downsample(encoder.stack(x, memory).transpose(1, 2)).transpose(1, 2)
