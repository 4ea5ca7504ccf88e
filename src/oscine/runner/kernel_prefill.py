"""Prefill on kernels: rows of any prompts side by side, in graphs of a few sizes, into the slots' pages."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oscine.runner.chain import KernelChain
from oscine.runner.graphs import GraphSet

PREFILL_SIZES = (16, 32, 64, 128)


class KernelPrefill:
    sizes = len(PREFILL_SIZES)

    def __init__(self, chain: KernelChain, width: int, pages_per_slot: int, like: Tensor, *, captured: bool) -> None:
        largest = PREFILL_SIZES[-1]
        self._chain = chain
        self._inputs = like.new_zeros(largest, width)
        self._pages = torch.zeros(largest, pages_per_slot, dtype=torch.int64, device=like.device)
        self._positions = torch.full((largest,), -1, dtype=torch.int64, device=like.device)
        self._graphs = GraphSet(self._run, PREFILL_SIZES, captured=captured)

    def capture(self, progress: Callable[[int, int], None]) -> None:
        with torch.inference_mode():
            self._positions.fill_(-1)  # the warm-up rows are nobody's
            self._graphs.capture(progress)

    def run(self, rows: Tensor, first: int, page_row: Tensor) -> None:
        """rows [n, width] of one prompt at positions first.. of the slot whose pages are page_row."""
        for piece in rows.split(PREFILL_SIZES[-1]):
            size, count = self._graphs.size_for(len(piece)), len(piece)
            self._inputs[:count].copy_(piece)
            self._pages[:count].copy_(page_row.expand(count, -1))
            self._positions[count:size].fill_(-1)
            self._positions[:count].copy_(torch.arange(first, first + count, device=rows.device))
            self._graphs.replay(size)
            first += count

    def _run(self, size: int) -> None:
        self._chain.prefill(self._inputs[:size], self._pages[:size], self._positions[:size])
