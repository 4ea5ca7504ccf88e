"""Who owns which page of the talker's key/value memory. Counting only: the tensors are the runner's.

All pages that a request may ever need are taken when it is admitted, so no stream can run dry half-way.
"""

from __future__ import annotations

PAGE_POSITIONS = 64


def pages_for(positions: int) -> int:
    return -(-positions // PAGE_POSITIONS)


class BlockAllocator:
    """Page 0 is nobody's: rows that only fill up a batch write there."""

    def __init__(self, pages: int) -> None:
        assert pages > 1, pages
        self._free = list(range(pages - 1, 0, -1))
        self._owned: dict[int, list[int]] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, slot: int, pages: int) -> list[int]:
        assert slot not in self._owned, f"slot {slot} holds pages already"
        assert pages <= len(self._free), (pages, len(self._free))
        taken = [self._free.pop() for _ in range(pages)]
        self._owned[slot] = taken
        return taken

    def give(self, slot: int) -> None:
        self._free += self._owned.pop(slot)
