"""Small functions that torch.compile turns into one kernel each, forward and backward; uncompiled, each takes five to
ten passes over memory. They are plain PyTorch and also run uncompiled.

A per-channel weight is expanded to every row of the batch (`per_row`). Its gradient is then a sum over time only, with
one program per channel and row. For a sum over batch and time the compiler launches only a few dozen programs: for
the snake activation that took 23 of a step's 55 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TURN_EPS = 1e-6  # of normed_and_turned


def per_row(weight: Tensor, batch: int) -> Tensor:
    return weight.expand(batch, *weight.shape).contiguous()


def snake(x: Tensor, rate: Tensor, depth: Tensor) -> Tensor:
    """x [batch, channels, time], parameters [batch, channels, 1]; the result has the dtype of x."""
    wave = torch.sin(x * rate)
    return (x + wave * wave * depth).to(x.dtype)


def normed_and_turned(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMS norm over the last dimension, then the rotation of layers.apply_rope. x [batch, heads, rows, dim], weight
    [batch, heads, 1, dim], cos and sin [1, 1, rows, dim / 2]."""
    wide = x.float()
    # A literal constant: the compiler would treat a variable as an input that may change.
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight
    low, high = wide.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def gated(both: Tensor) -> Tensor:
    """The middle of a SwiGLU: [gate, up] -> silu(gate) * up."""
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


@dataclass(frozen=True, slots=True)
class Fused:
    snake: Callable[..., Tensor] = snake
    normed_and_turned: Callable[..., Tensor] = normed_and_turned
    gated: Callable[..., Tensor] = gated


PLAIN = Fused()


# The compiler chooses block sizes for the first shapes it sees: on a GPU, use those that take the most time.


def compiled_for_codec(device: torch.device) -> Fused:
    batch, channels, samples = (16, 24, 23040) if device.type == "cuda" else (2, 4, 64)
    curves = [_like(device, batch, channels, 1) for _ in range(2)]
    return Fused(snake=_compiled(snake, (_like(device, batch, channels, samples, narrow=True), *curves)))


def compiled_for_talker(device: torch.device, inner: int) -> Fused:
    """`inner`: the width of the talker's SwiGLU."""
    frames, batch, rows = (8192, 128, 160) if device.type == "cuda" else (3, 2, 5)
    # Queries and keys are a slice of all heads; the predictor has sixteen rows.
    heads = _like(device, frames, 16, 8 * 64, narrow=True).view(frames, 16, 8, 64).transpose(1, 2)
    cos, sin = (torch.rand(1, 1, 16, 32, device=device) for _ in range(2))
    turned = (heads.split((6, 2), dim=1)[0], _like(device, frames, 6, 1, 64), cos, sin)
    both = _like(device, batch, rows, 2 * inner, narrow=True)
    return Fused(
        normed_and_turned=_compiled(normed_and_turned, turned, fixed_width=True),
        gated=_compiled(gated, (both,), fixed_width=True),
    )


def _like(device: torch.device, *shape: int, narrow: bool = False) -> Tensor:
    """A tensor like those of the training: in autocast's dtype, with gradients, neither a leaf nor a view. Other kinds
    of tensors would cause recompilation."""
    made = torch.rand(shape, device=device, requires_grad=True)
    return made.to(torch.bfloat16) if narrow and device.type == "cuda" else made.clone()


def _compiled(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], *, fixed_width: bool = False
) -> Callable[..., Tensor]:
    """Compiles for dynamic shapes. `fixed_width`: once per size of the last dimension, which is reduced or split.

    Tries `inputs` at once, forward and backward, and falls back to the plain function if that fails."""
    whole: Callable[..., Tensor] = torch.compile(function, dynamic=True)

    def call(*arguments: Tensor) -> Tensor:
        for one in arguments:
            torch._dynamo.mark_static(one, one.ndim - 1)
        return whole(*arguments)

    chosen = call if fixed_width else whole
    device = inputs[0].device.type
    try:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            made = chosen(*inputs)
        made.float().sum().backward()
    except Exception as error:
        print(f"{function.__name__} cannot be compiled here ({type(error).__name__}); it runs uncompiled", flush=True)
        return function
    return chosen
