"""Prefill on kernels: the rows of all prompts that came since the last frame, packed into graphs of a few sizes.

A row computes the same bits in any pack: see kernels/linear.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oscine.runner.cuda.decode_step import DecodeStep
from oscine.runner.cuda.graphs import GraphSet

PREFILL_SIZES = (16, 32, 64, 128)


class CudaPrefill:
    sizes = len(PREFILL_SIZES)

    def __init__(self, chain: DecodeStep, width: int, pages_per_slot: int, like: Tensor, *, captured: bool) -> None:
        largest = PREFILL_SIZES[-1]
        self._chain = chain
        self._inputs = like.new_zeros(largest, width)
        self._pages = torch.zeros(largest, pages_per_slot, dtype=torch.int64, device=like.device)
        self._positions = torch.full((largest,), -1, dtype=torch.int64, device=like.device)
        self._packed = 0  # rows that wait
        self._graphs = GraphSet(self._run, PREFILL_SIZES, captured=captured)

    def capture(self, progress: Callable[[int, int], None]) -> None:
        with torch.inference_mode():
            self._positions.fill_(-1)  # the warm-up rows are nobody's
            self._graphs.capture(progress)

    def add(self, rows: Tensor, first: int, page_row: Tensor) -> None:
        """A prompt that does not fit into what is left of a pack goes on in the next one, which sees its keys."""
        while len(rows):
            begin, end = self._packed, min(self._packed + len(rows), PREFILL_SIZES[-1])
            count = end - begin
            self._inputs[begin:end].copy_(rows[:count])
            self._pages[begin:end].copy_(page_row.expand(count, -1))
            self._positions[begin:end].copy_(torch.arange(first, first + count, device=rows.device))
            self._packed, rows, first = end, rows[count:], first + count
            if end == PREFILL_SIZES[-1]:
                self.flush()

    def flush(self) -> None:
        if self._packed:
            size = self._graphs.size_for(self._packed)
            self._positions[self._packed : size].fill_(-1)
            self._packed = 0
            self._graphs.replay(size)

    def _run(self, size: int) -> None:
        self._chain.prefill(self._inputs[:size], self._pages[:size], self._positions[:size])
