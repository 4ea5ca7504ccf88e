"""The state of all running requests: device tensors indexed by slot.

The host writes a slot at admission and when text arrives; frames update it in place, and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oscine.model.config import ModelConfig
from oscine.request import SamplingParams
from oscine.runner.memory_budget import MemoryBudget

INTS = (
    "position",  # of the row in `inputs`
    "frame",  # frames generated so far; the counter of the random numbers
    "text_count",  # text ids received; padding follows the last one
    "hold_eos",  # 1 while more text may arrive
    "first_top_k",
    "rest_top_k",
    "first_greedy",
    "rest_greedy",
    "seed_low",
    "seed_high",
)
FLOATS = ("first_temperature", "rest_temperature", "first_tail", "rest_tail", "penalty")
_INT_ROW = {name: row for row, name in enumerate(INTS)}
_FLOAT_ROW = {name: row for row, name in enumerate(FLOATS)}
_FLOAT_ROOM = [0] * -(-len(FLOATS) // 2)  # int64s that hold so many fp32
_MASK32 = 0xFFFFFFFF


def slot_numbers(
    sampling: SamplingParams, *, position: int, text_count: int, streaming_text: bool
) -> tuple[list[int], list[float]]:
    """Returns the numbers of a request before its first frame, in the order of INTS and FLOATS."""
    first, rest = sampling.first, sampling.rest
    draws = (first.top_k, rest.top_k, int(first.greedy), int(rest.greedy))
    ints = [position, 0, text_count, int(streaming_text), *draws, sampling.seed & _MASK32, sampling.seed >> 32]
    return ints, [first.temperature, rest.temperature, first.tail, rest.tail, sampling.repetition_penalty]


@dataclass(frozen=True, slots=True)
class SlotState:
    """Tensors of slots + 1 rows; the last row is scratch space for padding rows of a batch."""

    ints: Tensor  # [names, slots + 1] int64
    floats: Tensor  # [names, slots + 1] fp32
    inputs: Tensor  # [slots + 1, width]: the talker's next input row
    block_table: Tensor  # [slots + 1, blocks per slot] int64
    text_ids: Tensor  # [slots + 1, text capacity] int64: one id per frame
    seen: Tensor  # [slots + 1, code vocab] bool: code-0 ids drawn so far

    @staticmethod
    def allocate(config: ModelConfig, budget: MemoryBudget, like: Tensor) -> SlotState:
        rows, device = budget.slots + 1, like.device
        state = SlotState(
            ints=torch.zeros(len(INTS), rows, dtype=torch.int64, device=device),
            floats=torch.ones(len(FLOATS), rows, dtype=torch.float32, device=device),
            inputs=like.new_zeros(rows, config.talker.stack.width),
            block_table=torch.zeros(rows, budget.blocks_per_slot, dtype=torch.int64, device=device),
            text_ids=torch.full((rows, budget.text_capacity), config.tts_pad_id, dtype=torch.int64, device=device),
            seen=torch.zeros(rows, config.talker.code_vocab, dtype=torch.bool, device=device),
        )
        state.int_row("first_greedy").fill_(1)
        state.int_row("rest_greedy").fill_(1)
        return state

    def int_row(self, name: str) -> Tensor:
        return self.ints[_INT_ROW[name]]

    def float_row(self, name: str) -> Tensor:
        return self.floats[_FLOAT_ROW[name]]

    def write(
        self,
        slot: int,
        *,
        position: int,
        input_row: Tensor,
        blocks: Sequence[int],
        text_ids: Sequence[int],
        streaming_text: bool,
        sampling: SamplingParams,
    ) -> None:
        """Starts a request in `slot` and clears the previous one."""
        ints, floats = slot_numbers(
            sampling, position=position, text_count=len(text_ids), streaming_text=streaming_text
        )
        # All in one transfer to the device; the floats lie in the last integers.
        table = [*blocks, *[0] * (self.block_table.shape[1] - len(blocks))]
        values = np.array([*ints, *table, *text_ids, *_FLOAT_ROOM], np.int64)
        values[-len(_FLOAT_ROOM) :].view(np.float32)[: len(floats)] = floats
        sizes = (len(ints), len(table), len(text_ids), len(_FLOAT_ROOM))
        new_ints, new_table, new_text, new_floats = self._to_device(torch.from_numpy(values)).split(sizes)
        self.ints[:, slot] = new_ints
        self.floats[:, slot] = new_floats.view(torch.float32)[: len(floats)]
        self.inputs[slot] = input_row
        self.block_table[slot] = new_table
        self.seen[slot].zero_()
        if text_ids:
            self.text_ids[slot, : len(text_ids)] = new_text

    def append_text(self, slot: int, known: int, text_ids: Sequence[int], *, ended: bool) -> None:
        """Appends ids; `known` is the number of ids already written. The host counts them, so the device is not
        read."""
        if text_ids:
            self.text_ids[slot, known : known + len(text_ids)] = self._to_device(torch.tensor(text_ids))
            self.int_row("text_count")[slot] = known + len(text_ids)
        if ended:
            self.int_row("hold_eos")[slot] = 0

    def _to_device(self, values: Tensor) -> Tensor:
        return values.pin_memory().to(self.ints.device, non_blocking=True) if self.ints.is_cuda else values
