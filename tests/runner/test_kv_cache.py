import random

import numpy as np
import pytest
import torch

from oscine.runner.kv_cache import BLOCK_POSITIONS, BlockAllocator, PrefixCache, blocks_for, prefix_key
from oscine.types import Prompt


def prompt(text: list[int], speaker: float | None = None) -> Prompt:
    vector = None if speaker is None else np.full(4, speaker, dtype=np.float32)
    ids = np.array(text, dtype=np.int64)
    return Prompt(ids, ids + 1, np.zeros(0, dtype=np.int64), speaker=vector)


def entry(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 1, rows, 4), torch.zeros(2, 1, rows, 4)


def test_the_key_depends_on_content_only():
    assert prefix_key(prompt([1, 2, 3]), 2) == prefix_key(prompt([1, 2, 9]), 2)
    assert prefix_key(prompt([1, 2, 3]), 3) != prefix_key(prompt([1, 2, 9]), 3)
    assert prefix_key(prompt([1, 2], 0.5), 2) != prefix_key(prompt([1, 2], 0.6), 2)
    assert prefix_key(prompt([1, 2]), 2) != prefix_key(prompt([1, 2], 0.0), 2)


def test_the_least_recently_used_entry_is_evicted_when_bytes_run_out():
    one = sum(tensor.nbytes for tensor in entry(8))
    cache = PrefixCache(capacity_bytes=2 * one)
    cache.put("a", entry(8))
    cache.put("b", entry(8))
    assert cache.get("a") is not None
    cache.put("c", entry(8))
    assert cache.get("b") is None and cache.get("a") is not None and cache.get("c") is not None
    assert cache.nbytes == 2 * one and (cache.hits, cache.misses) == (3, 1)


def test_an_entry_larger_than_the_cache_is_not_kept():
    cache = PrefixCache(capacity_bytes=16)
    cache.put("a", entry(8))
    assert len(cache) == 0 and cache.nbytes == 0


# --- blocks ---


def test_a_block_belongs_to_one_slot_at_a_time():
    allocator, owned, rng = BlockAllocator(40), {}, random.Random(0)
    for _ in range(2000):
        slot = rng.randrange(12)
        if slot in owned:
            allocator.release(slot)
            del owned[slot]
        elif allocator.free_blocks:
            owned[slot] = allocator.allocate(slot, rng.randint(1, min(8, allocator.free_blocks)))
        blocks = [block for taken in owned.values() for block in taken]
        assert len(set(blocks)) == len(blocks) and 0 not in blocks
        assert len(blocks) + allocator.free_blocks == 39


def test_a_slot_cannot_allocate_twice():
    allocator = BlockAllocator(4)
    allocator.allocate(0, 1)
    with pytest.raises(AssertionError, match="already owns blocks"):
        allocator.allocate(0, 1)


@pytest.mark.parametrize(("positions", "blocks"), [(1, 1), (BLOCK_POSITIONS, 1), (BLOCK_POSITIONS + 1, 2)])
def test_a_partly_used_block_counts_as_one(positions, blocks):
    assert blocks_for(positions) == blocks
