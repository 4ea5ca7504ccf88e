"""Rows of prompts, as a prefill takes them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of any prompts, the rows of a prompt in order; rows at a negative position are none."""

    inputs: Tensor  # [rows, width]
    block_table: Tensor  # [rows, blocks]
    positions: Tensor  # [rows]
