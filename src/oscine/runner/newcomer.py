"""A request on its way into a slot: what the slot runner decided, and what the backend writes to the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from oscine.runner.prefix_cache import KV
from oscine.runner.runner import SlotAssignment


@dataclass(frozen=True, slots=True)
class Newcomer:
    assignment: SlotAssignment
    blocks: Sequence[int]  # of the KV cache, in the order of its positions
    prefix: KV | None = None  # keys and values of its first rows, from the prefix cache
    codec_state: tuple[Tensor, ...] | None = None  # a snapshot of SlotCodec; None: silence

    @property
    def prefix_rows(self) -> int:
        """Prompt rows that need no prefill."""
        return 0 if self.prefix is None else self.prefix[0].shape[0]
