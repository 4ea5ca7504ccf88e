"""Streams that arrive in pieces: KV caches of all positions or of a sliding window, the tails of a codec stream, and
causal convolutions that use them.

The codec decodes a stream in pieces of any size: each layer joins its new columns to the tail of the previous call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oscine.model.config import StackConfig
from oscine.model.layers import attention


class ContiguousKVCache:
    """All positions of rows that advance together. `prefill` or `append` sets the positions of the next forward."""

    def __init__(self, config: StackConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        self.keys, self.values = like.new_empty(shape), like.new_empty(shape)
        self.positions = torch.empty(0)
        self._begin = self._end = 0

    def prefill(self, rows: int) -> ContiguousKVCache:
        return self._next(0, rows)

    def append(self, position: int) -> ContiguousKVCache:
        """Continues after all earlier positions."""
        return self._next(position, position + 1)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        keys[:, :, self._begin : self._end] = k
        values[:, :, self._begin : self._end] = v
        return attention(q, keys[:, :, : self._end], values[:, :, : self._end], causal=q.shape[2] > 1)

    def _next(self, begin: int, end: int) -> ContiguousKVCache:
        self.positions = torch.arange(begin, end, device=self.keys.device).expand(self.keys.shape[1], -1)
        self._begin, self._end = begin, end
        return self


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state of codec streams between pieces."""

    frames: Tensor  # [batch], frames decoded so far
    tails: tuple[Tensor, ...]  # in the order of the signal path, [batch, ...] each

    @property
    def nbytes(self) -> int:
        return sum(tail.nbytes for tail in self.tails) + self.frames.nbytes


class History:
    """Gives each layer of one forward its old tail and collects the new tails in the same order."""

    def __init__(self, past: Sequence[Tensor] | None) -> None:
        self._past: Iterator[Tensor] | None = iter(past) if past is not None else None
        self.tails: list[Tensor] = []

    def join(self, x: Tensor, length: int, dim: int = -1) -> Tensor:
        """Puts the previous `length` columns before x. At the start of a stream they are zeros, like the padding of a
        whole-utterance forward."""
        if self._past is None:
            shape = list(x.shape)
            shape[dim] = length
            past = x.new_zeros(shape)
        else:
            past = next(self._past)
        joined = torch.cat((past, x), dim)
        tail = joined.narrow(dim, joined.shape[dim] - length, length)
        # A view keeps all of `joined` alive, so copy where that is much more than the tail.
        self.tails.append(tail.clone() if joined.shape[dim] > 2 * length else tail)
        return joined


class SlidingWindowCache:
    """A sliding window over an unbounded stream, for one forward of `rows` new frames."""

    def __init__(self, window: int, frames: Tensor, rows: int, history: History) -> None:
        self._history, self._past = history, window - 1
        new = torch.arange(rows, device=frames.device)
        self.positions = frames[:, None] + new
        # Key positions relative to the first new frame: -past .. rows-1.
        keys = torch.arange(-self._past, rows, device=frames.device)
        in_window = (keys <= new[:, None]) & (keys > new[:, None] - window)
        begun = keys >= -frames[:, None]
        self._mask = (in_window & begun[:, None, :])[:, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = self._history.join(k, self._past, dim=2)
        values = self._history.join(v, self._past, dim=2)
        return attention(q, keys, values, mask=self._mask)


# --- Causal convolutions.
#
# On a CPU they are matrix products over strided views: PyTorch's convolutions of several rows, or with dilation, take
# five to ten times as long there (measured on two ARM cores, widths of 4 to 64). The weights keep their layout.


def _prefers_products(x: Tensor) -> bool:
    """Whether to use matrix products. An exported graph holds real convolutions, which are fast in other runtimes."""
    return not x.is_cuda and not torch.compiler.is_compiling()


class CausalConv(nn.Conv1d):
    """Reads the current and earlier columns only."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation, groups=groups)
        assert groups in (1, inputs), groups
        self.taps, self.step, self.depthwise = kernel, dilation, groups > 1
        self.past = (kernel - 1) * dilation

    def forward(self, x: Tensor, history: History) -> Tensor:  # type: ignore[override]
        joined = history.join(x, self.past) if self.past else x
        return self._as_product(joined, x.shape[-1]) if _prefers_products(x) else super().forward(joined)

    def _as_product(self, joined: Tensor, columns: int) -> Tensor:
        assert self.bias is not None
        batch, channels, _ = joined.shape
        row, channel, column = joined.stride()
        strides = (row, channel, self.step * column, column)
        seen = joined.as_strided((batch, channels, self.taps, columns), strides)
        if self.depthwise:
            mixed = (seen * self.weight[:, 0, :, None]).sum(2)
        else:
            mixed = self.weight.flatten(1) @ seen.reshape(batch, channels * self.taps, columns)
        return mixed + self.bias[:, None]


class CausalUpsample(nn.ConvTranspose1d):
    """Transposed convolution with a kernel of one or two strides; drops columns that depend on later input."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride)
        assert kernel in (stride, 2 * stride), (kernel, stride)
        self.past = kernel // stride - 1
        self.rate = stride

    def forward(self, x: Tensor, history: History) -> Tensor:  # type: ignore[override]
        joined = history.join(x, self.past) if self.past else x
        if _prefers_products(x):
            return self._as_product(joined, x.shape[-1])
        return super().forward(joined).narrow(-1, self.past * self.rate, x.shape[-1] * self.rate)

    def _as_product(self, joined: Tensor, columns: int) -> Tensor:
        """Each input column makes one kernel length of outputs; its second half overlaps the next column's first."""
        assert self.bias is not None
        spread = self.weight.flatten(1).T @ joined
        spread = spread.unflatten(1, (self.out_channels, self.past + 1, self.rate))
        made = spread[:, :, 0, :, self.past :]  # [batch, outputs, rate, columns]
        if self.past:
            made = made + spread[:, :, 1, :, :-1]
        return made.transpose(2, 3).reshape(len(joined), self.out_channels, columns * self.rate) + self.bias[:, None]


class Snake(nn.Module):
    """x + sin(x * exp(alpha))^2 / exp(beta), per channel."""

    rate: Tensor
    depth: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def prepare(self) -> None:
        """Computes the exponentials once, after loading."""
        self.register_buffer("rate", self.alpha.data.exp()[:, None], persistent=False)
        self.register_buffer("depth", 1.0 / (self.beta.data.exp() + 1e-9)[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        wave = torch.sin(x * self.rate)
        return torch.addcmul(x, wave * self.depth, wave)
