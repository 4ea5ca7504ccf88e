"""A contiguous KV cache for rows of different lengths, as the reference path needs it."""

from __future__ import annotations

import torch
from torch import Tensor

from oscine.model.config import StackConfig
from oscine.model.layers import attention

_GROWTH = 256  # positions added at a time


class DenseKVCache:
    """Implements AttentionCache. `prefill` or `step` says what the next forward pass writes."""

    def __init__(self, config: StackConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        # Zeros: a masked value is multiplied by zero, and zero times a stray NaN is NaN.
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.positions = torch.empty(0)
        self._mask: Tensor | None = None
        self._end = 0

    def prefill(self, rows: int) -> DenseKVCache:
        """Positions 0..rows-1 of every row. Shorter rows are padded on the right: causality hides the padding, and
        later positions overwrite it."""
        self._reserve(rows)
        batch = self.keys.shape[1]
        self.positions = torch.arange(rows, device=self.keys.device).expand(batch, -1)
        self._mask, self._end = None, rows
        return self

    def step(self, positions: Tensor, longest: int) -> DenseKVCache:
        """One position per row: positions [batch], all below `longest`."""
        self._reserve(longest)
        self.positions = positions[:, None]
        keys = torch.arange(longest, device=positions.device)
        self._mask, self._end = (keys <= positions[:, None])[:, None, None, :], longest
        return self

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but these, in this order."""
        self.keys, self.values = self.keys.index_select(1, rows), self.values.index_select(1, rows)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self.keys[layer], self.values[layer]
        rows = torch.arange(k.shape[0], device=k.device)[:, None]
        keys[rows, :, self.positions] = k.transpose(1, 2)
        values[rows, :, self.positions] = v.transpose(1, 2)
        seen = (keys[:, :, : self._end], values[:, :, : self._end])
        return attention(q, *seen, mask=self._mask, causal=self._mask is None)

    def _reserve(self, positions: int) -> None:
        missing = positions - self.keys.shape[3]
        if missing > 0:
            pad = (0, 0, 0, -(-missing // _GROWTH) * _GROWTH)
            self.keys, self.values = (torch.nn.functional.pad(side, pad) for side in (self.keys, self.values))
