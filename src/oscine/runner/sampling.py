"""One code per row out of its logits, in the official order of operations, all arithmetic in fp32.

A draw is addressed, not stateful: its only randomness is uniform(seed, frame, codebook). The same request with
the same seed therefore draws the same codes alone, in any batch, and from any frame on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oscine.types import CODEBOOKS, DrawParams

_MASK32 = 0xFFFFFFFF
Words = TypeVar("Words", Tensor, npt.NDArray[np.int64])


@dataclass(frozen=True, slots=True)
class DrawTable:
    """DrawParams of several rows as tensors. The host flags skip work that no row asks for."""

    temperature: Tensor  # [rows, 1]
    top_k: Tensor  # [rows], 0: off
    tail: Tensor  # [rows, 1], 0: off
    greedy: Tensor  # [rows]
    largest_top_k: int
    some_unlimited: bool
    some_top_p: bool
    all_greedy: bool

    @staticmethod
    def of(params: Sequence[DrawParams], device: torch.device) -> DrawTable:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]

        return DrawTable(
            temperature=column([p.temperature for p in params]),
            top_k=torch.tensor([p.top_k for p in params], device=device),
            tail=column([p.tail for p in params]),
            greedy=torch.tensor([p.greedy for p in params], device=device),
            largest_top_k=max(p.top_k for p in params),
            some_unlimited=any(p.top_k == 0 for p in params),
            some_top_p=any(p.top_p < 1 for p in params),
            all_greedy=all(p.greedy for p in params),
        )


def penalize(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Repetition penalty [rows, 1] on every id in `seen` [rows, vocab]: once, however often it came."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def probabilities(logits: Tensor, table: DrawTable) -> Tensor:
    """Temperature, top-k (ties with the k-th stay), top-p, softmax."""
    logits = logits / table.temperature
    vocab = logits.shape[-1]
    if table.largest_top_k:
        largest = min(table.largest_top_k, vocab)
        top = logits.topk(largest, dim=-1).values
        weakest = top.gather(1, (table.top_k.clamp(1, largest) - 1)[:, None])
        if table.some_unlimited:
            weakest = weakest.masked_fill((table.top_k == 0)[:, None], float("-inf"))
        logits = logits.masked_fill(logits < weakest, float("-inf"))
    if table.some_top_p:
        logits = _nucleus(logits, table.tail)
    return torch.softmax(logits, dim=-1)


def _nucleus(logits: Tensor, tail: Tensor) -> Tensor:
    """Drop the least likely ids that together hold at most `tail`; the likeliest one always stays."""
    ordered, ids = logits.sort(dim=-1, stable=True)  # equal logits in the order of their ids, on any device
    below = torch.softmax(ordered, dim=-1).cumsum(-1)
    drop = below <= tail
    drop[:, -1] = False
    drop &= tail > 0
    return logits.masked_fill(torch.zeros_like(drop).scatter(1, ids, drop), float("-inf"))


def draw(logits: Tensor, table: DrawTable, uniform: Tensor) -> Tensor:
    """logits [rows, vocab] fp32, uniform [rows] in [0, 1) -> ids [rows]. Inverse CDF in the order of ids."""
    likeliest = logits.argmax(dim=-1)
    if table.all_greedy:
        return likeliest
    mass = probabilities(logits, table).cumsum(-1)
    total = mass[:, -1]
    # Rounding must not lift the target to the total: no id would lie above it.
    target = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    drawn = (mass <= target[:, None]).sum(-1)
    return torch.where(table.greedy, likeliest, drawn)


def uniforms(seeds: Sequence[int], first_frame: int, frames: int, device: torch.device) -> Tensor:
    """[rows, frames, 16] in [0, 1), for a run of frames that is the same for all rows."""
    low = torch.tensor([seed & _MASK32 for seed in seeds], device=device)
    high = torch.tensor([seed >> 32 for seed in seeds], device=device)
    frame = torch.arange(first_frame, first_frame + frames, device=device)
    return uniform(low[:, None], high[:, None], frame[None])


def uniform(seed_low: Tensor, seed_high: Tensor, frame: Tensor) -> Tensor:
    """[..., 16] in [0, 1): word 0 of Philox4x32-10, counter (frame, codebook, 0, 0), key the seed's halves."""
    book = torch.arange(CODEBOOKS, device=frame.device)
    parts = (frame[..., None], book, seed_low[..., None], seed_high[..., None])
    if frame.is_cpu:  # there the same 140 operations cost a third in NumPy
        return _fraction(torch.from_numpy(_first_word(*(part.numpy() for part in parts))))
    return _fraction(_first_word(*parts))


def _first_word(frame: Words, book: Words, seed_low: Words, seed_high: Words) -> Words:
    zero = book * 0
    return philox((frame, book, zero, zero), (seed_low, seed_high))[0]


def _fraction(word: Tensor) -> Tensor:
    return (word >> 8).float() * 2.0**-24  # 24 bits: every value is exact in fp32 and below 1


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Philox4x32-10 (Salmon et al. 2011) on 64-bit integers that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The 64-bit product may wrap to a negative number; its bits are right, so the masks are enough.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK32) ^ c1 ^ k0,
            p1 & _MASK32,
            ((p0 >> 32) & _MASK32) ^ c3 ^ k1,
            p0 & _MASK32,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK32, (k1 + 0xBB67AE85) & _MASK32
    return c0, c1, c2, c3
