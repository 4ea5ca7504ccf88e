"""Keys and values of prompt prefixes that many requests share (voice, language, instruction), keyed by content."""

from __future__ import annotations

import hashlib

from cachetools import LRUCache
from torch import Tensor

from oscine.types import Prompt

KV = tuple[Tensor, Tensor]  # keys and values [layers, kv heads, rows, head_dim]


def prefix_key(prompt: Prompt, rows: int) -> str:
    """A hash of the first rows: their ids, and the vectors that some of the ids stand for."""
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
