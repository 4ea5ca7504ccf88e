"""Allocation of the rows of the batch."""

from __future__ import annotations

import heapq


class Slots:
    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))  # a heap: the lowest row first keeps the batch dense

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def taken(self) -> int:
        return self.count - len(self._free)

    def take(self) -> int:
        assert self._free, f"all {self.count} slots are taken"
        return heapq.heappop(self._free)

    def give(self, slot: int) -> None:
        assert 0 <= slot < self.count and slot not in self._free, f"slot {slot} was not taken"
        heapq.heappush(self._free, slot)
