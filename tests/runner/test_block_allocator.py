import random

import pytest

from oscine.runner.block_allocator import PAGE_POSITIONS, BlockAllocator, pages_for


def test_a_page_belongs_to_one_slot_at_a_time():
    pool, held, rng = BlockAllocator(40), {}, random.Random(0)
    for _ in range(2000):
        slot = rng.randrange(12)
        if slot in held:
            pool.give(slot)
            del held[slot]
        elif pool.free:
            held[slot] = pool.take(slot, rng.randint(1, min(8, pool.free)))
        pages = [page for taken in held.values() for page in taken]
        assert len(set(pages)) == len(pages) and 0 not in pages
        assert len(pages) + pool.free == 39


def test_a_slot_cannot_take_twice():
    pool = BlockAllocator(4)
    pool.take(0, 1)
    with pytest.raises(AssertionError, match="holds pages already"):
        pool.take(0, 1)


@pytest.mark.parametrize(("positions", "pages"), [(1, 1), (PAGE_POSITIONS, 1), (PAGE_POSITIONS + 1, 2)])
def test_a_started_page_counts_whole(positions, pages):
    assert pages_for(positions) == pages
