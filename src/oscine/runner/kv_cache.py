"""The talker's KV cache: blocks of keys and values, their allocation, the prefix cache, and attention in plain
PyTorch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from cachetools import LRUCache
from torch import Tensor

from oscine.model.config import StackConfig
from oscine.model.layers import attention
from oscine.types import Prompt


@dataclass(frozen=True, slots=True)
class PagedKVCache:
    keys: Tensor  # [layers, blocks, kv heads, BLOCK_POSITIONS, head_dim]
    values: Tensor

    @staticmethod
    def allocate(config: StackConfig, blocks: int, like: Tensor) -> PagedKVCache:
        shape = (config.layers, blocks, config.kv_heads, BLOCK_POSITIONS, config.head_dim)
        return PagedKVCache(like.new_zeros(shape), like.new_zeros(shape))

    def clear(self, blocks: Sequence[int]) -> None:
        """Sets free blocks to zero for DecodeCacheView, which reads whole blocks: a masked value is multiplied by zero,
        and zero times a NaN of an earlier stream would be NaN."""
        index = torch.tensor(blocks, device=self.keys.device)
        self.keys.index_fill_(1, index, 0.0)
        self.values.index_fill_(1, index, 0.0)

    def write(self, block_row: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes keys and values [n, layers, kv heads, head_dim] to the first positions of a slot.

        block_row is the slot's row of the block table."""
        blocks, offsets = _locate(block_row, 0, len(keys))
        self.keys[:, blocks, :, offsets] = keys
        self.values[:, blocks, :, offsets] = values

    def read(self, block_row: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Returns the first `count` positions of a slot, in the layout of `write`."""
        blocks, offsets = _locate(block_row, 0, count)
        keys, values = self.keys[:, blocks, :, offsets], self.values[:, blocks, :, offsets]
        return keys.contiguous(), values.contiguous()

    def read_layer(self, layer: int, block_row: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Returns one layer's first `count` positions: [kv heads, count, head_dim]."""
        blocks = block_row[: blocks_for(count)]
        keys, values = (
            side[layer][blocks].transpose(0, 1).flatten(1, 2)[:, :count] for side in (self.keys, self.values)
        )
        return keys, values


def _locate(block_row: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Returns block and offset of the positions first .. first + count - 1."""
    positions = torch.arange(first, first + count, device=block_row.device)
    return block_row[positions // BLOCK_POSITIONS], positions % BLOCK_POSITIONS


class PrefillCacheView:
    """The cache for rows of one prompt at positions first .., after the slot's positions that are already filled."""

    def __init__(self, kv: PagedKVCache, block_row: Tensor, first: int, rows: int) -> None:
        self._kv, self._block_row, self._first = kv, block_row, first
        self.positions = torch.arange(first, first + rows, device=block_row.device)[None]
        self._location = _locate(block_row, first, rows)
        keys = torch.arange(first + rows, device=block_row.device)
        self._mask = keys <= self.positions[0, :, None] if first else None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks, offsets = self._location
        self._kv.keys[layer][blocks, :, offsets] = k[0].transpose(0, 1)
        self._kv.values[layer][blocks, :, offsets] = v[0].transpose(0, 1)
        if self._first:
            keys, values = self._kv.read_layer(layer, self._block_row, self._first)
            k, v = torch.cat((keys[None], k), dim=2), torch.cat((values[None], v), dim=2)
        return attention(q, k, v, mask=self._mask, causal=self._mask is None)


class DecodeCacheView:
    """The cache for one new position per row of a tick; every row is a different slot."""

    def __init__(self, kv: PagedKVCache, block_table: Tensor, positions: Tensor, max_context: int) -> None:
        """block_table [rows, blocks per slot]; positions [rows], all below `max_context`."""
        self._kv = kv
        self.positions = positions[:, None]
        blocks = block_table[:, : blocks_for(max_context)]
        kv_heads = kv.keys.shape[2]
        heads = torch.arange(kv_heads, device=positions.device)
        # Each head of a block is contiguous. These are the indices of all heads, [rows, kv heads, blocks], and of
        # the new rows in them.
        head_blocks = blocks[:, None] * kv_heads + heads[:, None]
        new = head_blocks.gather(2, (positions // BLOCK_POSITIONS)[:, None, None].expand(-1, kv_heads, 1))
        self._head_blocks = head_blocks.flatten()
        self._new = (new * BLOCK_POSITIONS + (positions % BLOCK_POSITIONS)[:, None, None]).flatten()
        self._gathered_shape = (*head_blocks.shape[:2], blocks.shape[1] * BLOCK_POSITIONS, kv.keys.shape[-1])
        keys = torch.arange(self._gathered_shape[2], device=positions.device)
        hidden = (keys > positions[:, None])[:, None, None]
        # Added to the scores: PyTorch would convert a bool mask again in every layer.
        self._mask = kv.keys.new_zeros(hidden.shape).masked_fill_(hidden, float("-inf"))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._append(self._kv.keys[layer], k), self._append(self._kv.values[layer], v)
        return attention(q, keys, values, mask=self._mask)

    def _append(self, blocks: Tensor, new: Tensor) -> Tensor:
        """Writes the new rows, then gathers every slot's positions: [rows, kv heads, positions, head_dim]."""
        dim = blocks.shape[-1]
        blocks.view(-1, dim).index_copy_(0, self._new, new.reshape(-1, dim))
        return blocks.view(-1, BLOCK_POSITIONS * dim).index_select(0, self._head_blocks).view(self._gathered_shape)


# --- Which slot owns which blocks: bookkeeping only.
#
# A request gets every block that it can ever need at admission, so a running stream never runs out of blocks.


BLOCK_POSITIONS = 64


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK_POSITIONS)


class BlockAllocator:
    """Assigns blocks to slots. Block 0 is never allocated: padding rows write to it."""

    def __init__(self, blocks: int) -> None:
        assert blocks > 1, blocks
        self._free = list(range(blocks - 1, 0, -1))
        self._owned: dict[int, list[int]] = {}

    @property
    def free_blocks(self) -> int:
        return len(self._free)

    def allocate(self, slot: int, count: int) -> list[int]:
        assert slot not in self._owned, f"slot {slot} already owns blocks"
        assert count <= len(self._free), (count, len(self._free))
        self._owned[slot] = [self._free.pop() for _ in range(count)]
        return self._owned[slot]

    def release(self, slot: int) -> list[int]:
        """Returns the blocks that the slot had."""
        blocks = self._owned.pop(slot)
        self._free += blocks
        return blocks


# --- The prefix cache: keys and values of prompt prefixes that many requests share (voice, language, instruction).

KV = tuple[Tensor, Tensor]  # keys and values [layers, kv heads, rows, head_dim]


def prefix_key(prompt: Prompt, rows: int) -> str:
    """Returns a hash of the first rows: their ids, and the vectors that some of the ids stand for."""
    digest = hashlib.sha256(prompt.text_ids[:rows].tobytes())
    digest.update(prompt.codec_ids[:rows].tobytes())
    for vectors in (prompt.speaker, prompt.reference_codes):
        digest.update(b"-" if vectors is None else vectors.tobytes())
    return digest.hexdigest()


def _nbytes(entry: KV) -> int:
    return entry[0].nbytes + entry[1].nbytes


class PrefixCache:
    """An LRU cache bounded by bytes. Not thread-safe: only the runner's thread uses it."""

    def __init__(self, capacity_bytes: int) -> None:
        self._entries: LRUCache[str, KV] = LRUCache(capacity_bytes, getsizeof=_nbytes)
        self.hits = 0
        self.misses = 0

    @property
    def nbytes(self) -> int:
        return int(self._entries.currsize)

    def get(self, key: str) -> KV | None:
        entry = self._entries.get(key)
        self.hits += entry is not None
        self.misses += entry is None
        return entry

    def put(self, key: str, entry: KV) -> None:
        """Keeps the entry, unless it alone exceeds the capacity."""
        if key not in self._entries and _nbytes(entry) <= self._entries.maxsize:
            self._entries[key] = entry

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
