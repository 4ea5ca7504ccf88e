"""Packed prefill: the rows of all prompts admitted since the last frame run together, in graphs of a few sizes.

A row gets the same bits in any pack (kernels/linear.py says why).
"""

from __future__ import annotations

import torch
from torch import Tensor

from oscine.runner.backend import CaptureProgress
from oscine.runner.cuda.decode_step import DecodeStep
from oscine.runner.cuda.graphs import GraphSet

PREFILL_SIZES = (16, 32, 64, 128)
_PADDING = -1  # position of rows that fill up a pack


class PackedPrefill:
    def __init__(self, step: DecodeStep, width: int, blocks_per_slot: int, like: Tensor, *, captured: bool) -> None:
        largest = PREFILL_SIZES[-1]
        self._step = step
        self._inputs = like.new_zeros(largest, width)
        self._block_table = torch.zeros(largest, blocks_per_slot, dtype=torch.int64, device=like.device)
        self._positions = torch.full((largest,), _PADDING, dtype=torch.int64, device=like.device)
        self._pending = 0  # rows in the pack
        self._graphs = GraphSet(self._run, PREFILL_SIZES, captured=captured)

    def capture(self, progress: CaptureProgress) -> None:
        self._positions.fill_(_PADDING)
        self._graphs.capture(progress)

    def add(self, rows: Tensor, first: int, block_row: Tensor) -> None:
        """Rows that do not fit into this pack go into the next one, which reads the keys of this one."""
        while len(rows):
            begin, end = self._pending, min(self._pending + len(rows), PREFILL_SIZES[-1])
            count = end - begin
            self._inputs[begin:end].copy_(rows[:count])
            self._block_table[begin:end].copy_(block_row.expand(count, -1))
            self._positions[begin:end].copy_(torch.arange(first, first + count, device=rows.device))
            self._pending, rows, first = end, rows[count:], first + count
            if end == PREFILL_SIZES[-1]:
                self.flush()

    def flush(self) -> None:
        if self._pending:
            size = self._graphs.size_for(self._pending)
            self._positions[self._pending : size].fill_(_PADDING)
            self._pending = 0
            self._graphs.replay(size)

    def _run(self, size: int) -> None:
        self._step.prefill(self._inputs[:size], self._block_table[:size], self._positions[:size])
