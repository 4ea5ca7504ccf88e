"""Which slot owns which blocks of the talker's KV cache. Bookkeeping only: kv_cache.py holds the tensors.

A request gets every block that it can ever need at admission, so a running stream never runs out of blocks.
"""

from __future__ import annotations

BLOCK_POSITIONS = 64


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK_POSITIONS)


class BlockAllocator:
    """Block 0 is never allocated: padding rows write to it."""

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
        """Returns the blocks that it had."""
        blocks = self._owned.pop(slot)
        self._free += blocks
        return blocks
