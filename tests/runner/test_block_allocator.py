import random

import pytest

from oscine.runner.kv_cache import BLOCK_POSITIONS, BlockAllocator, blocks_for


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
