"""How the memory is divided, decided and printed before a weight is loaded; what cannot fit is refused here."""

from __future__ import annotations

from dataclasses import dataclass

from oscine.model.config import ModelConfig
from oscine.runner.block_allocator import PAGE_POSITIONS, pages_for
from oscine.runner.cuda.ring_buffers import ring_codec_elements
from oscine.types import CODEBOOKS, ConfigError

_MiB = 2**20
# Captured graphs, libraries, buffers, and what an allocator cannot use of its blocks. A server of 1.7B with 128 slots
# held 1.3 GiB more than is counted here, the device's context included, which is there before free memory is asked.
_GPU_RESERVE = 1024 * _MiB


class DoesNotFitError(ConfigError):
    """`sums` says what was planned and what is free, without advice."""

    def __init__(self, sums: str, advice: str) -> None:
        super().__init__(f"{sums}; {advice}")
        self.sums = sums


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    slots: int
    positions_per_slot: int  # the longest prompt plus speech
    pages: int  # shared by all slots; page 0 is scratch
    text_capacity: int  # text tokens of one request
    prefix_bytes: int
    kv_bytes: int
    codec_bytes: int
    working_bytes: int  # tables and buffers of the kernels, and a reserve

    @property
    def pages_per_slot(self) -> int:
        return pages_for(self.positions_per_slot)

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.codec_bytes + self.prefix_bytes + self.working_bytes

    def describe(self) -> str:
        slots = f"{self.slots} slot{'' if self.slots == 1 else 's'}"
        return (
            f"{slots} of up to {self.positions_per_slot} positions, {self.pages} pages of {PAGE_POSITIONS}: "
            f"keys and values {self.kv_bytes / _MiB:.0f} MiB, codec state {self.codec_bytes / _MiB:.0f} MiB, "
            f"prefixes at most {self.prefix_bytes / _MiB:.0f} MiB, working memory {self.working_bytes / _MiB:.0f} MiB"
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
    kernels: bool = False,
) -> MemoryBudget:
    """`positions_total` over all slots; None: half of what would let every slot be as long as it may. `kernels`: the
    codec's state lies in ring buffers, which are larger than what they hold."""
    stack = config.talker.stack
    if positions_per_slot > config.talker.max_positions:
        raise ConfigError(
            f"positions_per_slot is {positions_per_slot}, the checkpoint has {config.talker.max_positions} positions"
        )
    if slots < 1 or positions_per_slot < PAGE_POSITIONS:
        raise ConfigError(
            f"at least 1 slot of {PAGE_POSITIONS} positions is needed, got {slots} of {positions_per_slot}"
        )
    per_slot = pages_for(positions_per_slot)
    wanted = pages_for(positions_total) if positions_total else max(per_slot, slots * per_slot // 2)
    if wanted < per_slot:
        raise ConfigError(
            f"{positions_total} positions in all are fewer than one slot may need ({positions_per_slot}); "
            "raise positions_total or lower positions_per_slot"
        )
    page_bytes = 2 * stack.layers * stack.kv_heads * stack.head_dim * PAGE_POSITIONS * element_bytes
    budget = MemoryBudget(
        slots=slots,
        positions_per_slot=positions_per_slot,
        pages=wanted + 1,
        text_capacity=text_capacity,
        prefix_bytes=prefix_bytes,
        kv_bytes=(wanted + 1) * page_bytes,
        codec_bytes=(slots + 1) * codec_state_bytes(config, element_bytes, kernels=kernels),
        working_bytes=_table_bytes(config, element_bytes) + _GPU_RESERVE if kernels else 0,
    )
    if available_bytes is not None and budget.total_bytes > available_bytes:
        needed, free = (f"{count / _MiB:.0f} MiB" for count in (budget.total_bytes, available_bytes))
        sums = f"{budget.describe()}; that is {needed}, {free} are free"
        raise DoesNotFitError(sums, _advice(budget, available_bytes))
    return budget


def _advice(budget: MemoryBudget, available_bytes: int) -> str:
    """What to ask for instead. What is only kept to be quicker goes first, if that is enough."""
    left = available_bytes - (budget.total_bytes - budget.prefix_bytes)
    if left >= 0:
        return f"lower engine.memory.prefix_cache_mib from {budget.prefix_bytes // _MiB} to {left // _MiB}"
    return f"use fewer slots (now {budget.slots}) or positions" if budget.slots > 1 else "use fewer positions"


def _table_bytes(config: ModelConfig, element_bytes: int) -> int:
    """What chain.py makes of the weights: all text rows projected, all code rows as narrow as the predictor, and what
    its first layer makes of them."""
    talker, predictor = config.talker, config.predictor
    elements = talker.text_vocab * talker.stack.width
    if predictor.talker_width != predictor.stack.width:
        elements += (talker.code_vocab + (CODEBOOKS - 1) * predictor.vocab) * predictor.stack.width
    stack = predictor.stack
    elements += (CODEBOOKS - 2) * predictor.vocab * (stack.heads + 2 * stack.kv_heads) * stack.head_dim
    return element_bytes * elements


def codec_state_bytes(config: ModelConfig, element_bytes: int, *, kernels: bool = False) -> int:
    """One stream's codec state: model/codec.py's, or triton_codec.py's."""
    decoder = config.codec.decoder
    if kernels:
        return ring_codec_elements(decoder) * element_bytes
    stack = decoder.stack
    assert stack.window is not None
    elements = 2 * decoder.codebook_dim + 2 * stack.layers * (stack.window - 1) * stack.kv_heads * stack.head_dim
    elements += 6 * decoder.latent * (len(decoder.upsampling_ratios) + 1)
    width = decoder.decoder_dim
    for _ in decoder.upsample_rates:
        elements += width + 6 * (1 + 3 + 9) * (width // 2)
        width //= 2
    return (elements + 6 * width) * element_bytes
