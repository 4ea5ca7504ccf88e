"""Keys and values of prompt beginnings that many requests share (voice, language, instruction), by content."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from torch import Tensor

from oscine.types import Prompt

KV = tuple[Tensor, Tensor]  # keys and values [layers, kv heads, rows, head_dim]


def prefix_key(prompt: Prompt, rows: int) -> str:
    """Equal for equal beginnings: the ids, and the vectors that some of them stand for."""
    digest = hashlib.sha256(prompt.text_ids[:rows].tobytes())
    digest.update(prompt.codec_ids[:rows].tobytes())
    for vectors in (prompt.speaker, prompt.reference_codes):
        digest.update(b"-" if vectors is None else vectors.tobytes())
    return digest.hexdigest()


class PrefixCache:
    """Bounded by bytes; the least recently used leaves first. One thread, the runner's, owns it."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[str, KV] = OrderedDict()
        self.nbytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: str) -> KV | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry

    def put(self, key: str, entry: KV) -> None:
        if key in self._entries or _nbytes(entry) > self._capacity_bytes:
            return
        self._entries[key] = entry
        self.nbytes += _nbytes(entry)
        while self.nbytes > self._capacity_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.nbytes -= _nbytes(oldest)

    def __len__(self) -> int:
        return len(self._entries)


def _nbytes(entry: KV) -> int:
    return entry[0].nbytes + entry[1].nbytes
