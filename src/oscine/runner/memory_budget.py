"""Divides the device's memory before weights are loaded, and refuses settings that do not fit."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from oscine.errors import ConfigError
from oscine.model.config import ModelConfig
from oscine.runner.kv_cache import BLOCK_POSITIONS, blocks_for

_MiB = 2**20


class DoesNotFitError(ConfigError):
    """The plan does not fit. `sums` describes the plan and the free memory, without advice; `fitting_slots` is the
    largest number that fits."""

    def __init__(self, sums: str, advice: str, fitting_slots: int) -> None:
        super().__init__(f"{sums}; {advice}")
        self.sums, self.fitting_slots = sums, fitting_slots


@dataclass(frozen=True, slots=True)
class MemoryFootprint:
    """The memory that a backend allocates besides the weights and the KV cache."""

    codec_state_bytes: int  # of one slot
    working_bytes: int = 0  # tables, buffers and a reserve


class BackendMemory(Protocol):
    """The part of a backend that planning memory requires."""

    @staticmethod
    def memory_footprint(config: ModelConfig, element_bytes: int) -> MemoryFootprint:
        """Computed without the weights, because memory is planned before they are loaded."""


def plain_memory_footprint(config: ModelConfig, element_bytes: int) -> MemoryFootprint:
    """Returns the footprint of a backend that keeps a StreamState of model/codec.py for every slot."""
    return MemoryFootprint(config.codec.decoder.state_elements * element_bytes)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    slots: int
    positions_per_slot: int  # limit of prompt plus speech
    blocks: int  # of the KV cache, shared by all slots; block 0 is for padding rows
    text_capacity: int  # text tokens of one request
    prefix_bytes: int
    kv_bytes: int
    codec_bytes: int
    working_bytes: int

    @property
    def blocks_per_slot(self) -> int:
        return blocks_for(self.positions_per_slot)

    @property
    def tensor_bytes(self) -> int:
        return self.kv_bytes + self.codec_bytes + self.prefix_bytes

    @property
    def total_bytes(self) -> int:
        return self.tensor_bytes + self.working_bytes

    def describe(self) -> str:
        return (
            f"{_slots(self.slots)} of up to {self.positions_per_slot} positions, {self.blocks} blocks of "
            f"{BLOCK_POSITIONS}: KV cache {self.kv_bytes / _MiB:.0f} MiB, "
            f"codec state {self.codec_bytes / _MiB:.0f} MiB, "
            f"prefix cache up to {self.prefix_bytes / _MiB:.0f} MiB, "
            f"working memory {self.working_bytes / _MiB:.0f} MiB"
        )


def plan_memory(
    config: ModelConfig,
    *,
    slots: int,
    positions_per_slot: int,
    positions_total: int | None,
    element_bytes: int,
    available_bytes: int | None,
    prefix_bytes: int = 256 * _MiB,
    text_capacity: int = 4096,
    backend: type[BackendMemory] | None = None,
) -> MemoryBudget:
    """Plans the memory. `positions_total` is shared by all slots; by default half of the maximum that they could use.
    Without `backend`, the footprint of plain PyTorch is used."""
    stack = config.talker.stack
    if positions_per_slot > config.talker.max_positions:
        raise ConfigError(
            f"positions_per_slot is {positions_per_slot}, the checkpoint has {config.talker.max_positions} positions"
        )
    if slots < 1 or positions_per_slot < BLOCK_POSITIONS:
        raise ConfigError(
            f"at least 1 slot of {BLOCK_POSITIONS} positions is needed, got {slots} of {positions_per_slot}"
        )
    per_slot = blocks_for(positions_per_slot)
    if positions_total and blocks_for(positions_total) < per_slot:
        raise ConfigError(
            f"positions_total is {positions_total}, less than one slot may need ({positions_per_slot}); "
            "raise positions_total or lower positions_per_slot"
        )
    needs = (backend.memory_footprint if backend else plain_memory_footprint)(config, element_bytes)
    block_bytes = 2 * stack.layers * stack.kv_heads * stack.head_dim * BLOCK_POSITIONS * element_bytes

    def plan(slots: int) -> MemoryBudget:
        blocks = 1 + (blocks_for(positions_total) if positions_total else max(per_slot, slots * per_slot // 2))
        return MemoryBudget(
            slots=slots,
            positions_per_slot=positions_per_slot,
            blocks=blocks,
            text_capacity=text_capacity,
            prefix_bytes=prefix_bytes,
            kv_bytes=blocks * block_bytes,
            codec_bytes=(slots + 1) * needs.codec_state_bytes,
            working_bytes=needs.working_bytes,
        )

    budget = plan(slots)
    if available_bytes is not None and budget.total_bytes > available_bytes:
        needed, free = (f"{count / _MiB:.0f} MiB" for count in (budget.total_bytes, available_bytes))
        sums = f"{budget.describe()}; this needs {needed}, {free} are free"
        fitting = bisect_right(range(1, slots), available_bytes, key=lambda slots: plan(slots).total_bytes)
        raise DoesNotFitError(sums, _advice(budget, available_bytes, fitting), fitting)
    return budget


def _advice(budget: MemoryBudget, available_bytes: int, fitting_slots: int) -> str:
    """Proposes a smaller prefix cache first if that is enough, because it costs only speed."""
    left = available_bytes - (budget.total_bytes - budget.prefix_bytes)
    if left >= 0:
        return f"lower engine.memory.prefix_cache_mib from {budget.prefix_bytes // _MiB} to {left // _MiB}"
    return f"use {_slots(fitting_slots)} or fewer positions" if fitting_slots else "use fewer positions"


def _slots(count: int) -> str:
    return f"{count} slot{'' if count == 1 else 's'}"
