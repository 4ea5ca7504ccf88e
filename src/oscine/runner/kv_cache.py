"""The talker's keys and values for all slots, in pages; and the two ways a stack looks into them in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oscine.model.config import StackConfig
from oscine.model.layers import attention
from oscine.runner.block_allocator import PAGE_POSITIONS, pages_for


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    keys: Tensor  # [layers, pages, kv heads, page positions, head_dim]
    values: Tensor

    @staticmethod
    def allocate(config: StackConfig, pages: int, like: Tensor) -> PagedKVCache:
        shape = (config.layers, pages, config.kv_heads, PAGE_POSITIONS, config.head_dim)
        # Zeros: a masked value is multiplied by zero, and zero times a stray NaN is NaN.
        return PagedKVCache(like.new_zeros(shape), like.new_zeros(shape))

    def write(self, page_row: Tensor, keys: Tensor, values: Tensor) -> None:
        """keys [n, layers, kv heads, head_dim] to the first positions of the slot whose pages are page_row."""
        pages, offsets = _places(page_row, 0, len(keys))
        self.keys[:, pages, :, offsets] = keys
        self.values[:, pages, :, offsets] = values

    def read(self, page_row: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The first `count` positions of a slot, as `write` takes them."""
        pages, offsets = _places(page_row, 0, count)
        return self.keys[:, pages, :, offsets], self.values[:, pages, :, offsets]

    def read_layer(self, layer: int, page_row: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """One layer's first `count` positions: [kv heads, n, head_dim]."""
        pages = page_row[: pages_for(count)]
        keys, values = (
            side[layer][pages].transpose(0, 1).flatten(1, 2)[:, :count] for side in (self.keys, self.values)
        )
        return keys, values


def _places(page_row: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    positions = torch.arange(first, first + count, device=page_row.device)
    return page_row[positions // PAGE_POSITIONS], positions % PAGE_POSITIONS


class PrefillCacheView:
    """One prompt's rows at positions first.., behind those of the slot that are filled already."""

    def __init__(self, kv: PagedKVCache, page_row: Tensor, first: int, rows: int) -> None:
        self._kv, self._page_row, self._first = kv, page_row, first
        self.positions = torch.arange(first, first + rows, device=page_row.device)[None]
        self._places = _places(page_row, first, rows)
        keys = torch.arange(first + rows, device=page_row.device)
        self._mask = keys <= self.positions[0, :, None] if first else None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pages, offsets = self._places
        self._kv.keys[layer][pages, :, offsets] = k[0].transpose(0, 1)
        self._kv.values[layer][pages, :, offsets] = v[0].transpose(0, 1)
        if self._first:
            before = self._kv.read_layer(layer, self._page_row, self._first)
            k, v = torch.cat((before[0][None], k), dim=2), torch.cat((before[1][None], v), dim=2)
        return attention(q, k, v, mask=self._mask, causal=self._mask is None)


class DecodeCacheView:
    """One new position for each row of a tick, every row in its own slot."""

    def __init__(self, kv: PagedKVCache, page_table: Tensor, positions: Tensor, longest: int) -> None:
        """page_table [rows, pages per slot]; positions [rows], all below `longest`."""
        self._kv = kv
        self.positions = positions[:, None]
        pages = page_table[:, : pages_for(longest)]
        kv_heads = kv.keys.shape[2]
        heads = torch.arange(kv_heads, device=positions.device)
        # A head's part of a page is one block of memory. Those that are seen, and the places of the new rows in them:
        blocks = pages[:, None] * kv_heads + heads[:, None]  # [rows, kv heads, pages]
        new = blocks.gather(2, (positions // PAGE_POSITIONS)[:, None, None].expand(-1, kv_heads, 1))
        self._blocks = blocks.flatten()
        self._new = (new * PAGE_POSITIONS + (positions % PAGE_POSITIONS)[:, None, None]).flatten()
        self._seen_shape = (*blocks.shape[:2], pages.shape[1] * PAGE_POSITIONS, kv.keys.shape[-1])
        keys = torch.arange(self._seen_shape[2], device=positions.device)
        hidden = (keys > positions[:, None])[:, None, None]
        # Added to scores: of bools it would be made again in every layer.
        self._mask = kv.keys.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._with(self._kv.keys[layer], k), self._with(self._kv.values[layer], v)
        return attention(q, keys, values, mask=self._mask)

    def _with(self, pages: Tensor, new: Tensor) -> Tensor:
        """Keeps the new rows; all that is seen, [rows, kv heads, positions, head_dim], gathered."""
        dim = pages.shape[-1]
        pages.view(-1, dim).index_copy_(0, self._new, new.reshape(-1, dim))
        return pages.view(-1, PAGE_POSITIONS * dim).index_select(0, self._blocks).view(self._seen_shape)
