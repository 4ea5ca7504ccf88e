"""State between forwards: KV caches of all positions or of a sliding window, and the tails of a codec stream.

The codec decodes a stream in pieces of any size: each layer joins its new columns to the tail of the previous call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
