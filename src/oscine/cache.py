"""A bounded cache: values by content, the least recently used leaves first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedCache(Generic[V]):
    def __init__(self, capacity: int) -> None:
        assert capacity > 0, capacity
        self._capacity = capacity
        self._values: OrderedDict[str, V] = OrderedDict()
        self._lock = threading.Lock()

    def get_or_make(self, key: str, make: Callable[[], V]) -> V:
        """`make` runs outside the lock: two threads may both make a new value, and the later one is kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)
        return value

    def __len__(self) -> int:
        return len(self._values)
