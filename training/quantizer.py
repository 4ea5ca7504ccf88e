"""The split residual quantiser in training: one semantic codebook and fifteen acoustic ones, each for what those before
it left. Codebooks follow the data by moving averages; entries that nobody uses are moved to where data is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import paths  # noqa: F401
import torch
from torch import Tensor, nn

from oscine.types import CODEBOOKS

_DECAY = 0.98
_DEAD_USES = 0.15  # of the mean use of an entry
_KMEANS_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Quantised:
    latent: Tensor  # [batch, frames, codebook_dim], with gradients to the encoder
    semantic: Tensor  # [batch, frames, width], the semantic entry alone, straight through
    codes: Tensor  # [batch, frames, 16]
    commitment: Tensor


class SplitQuantizer(nn.Module):
    entries: Tensor  # [16, size, width]
    spoken: Tensor  # as entries: what the decoder takes for them. The same, until it is polished
    uses: Tensor  # [16, size], moving averages
    sums: Tensor
    ready: Tensor

    def __init__(self, encoder_width: int, codebook_dim: int, size: int) -> None:
        super().__init__()
        width = codebook_dim // 2
        self.size, self.width = size, width
        self.input_proj = nn.Parameter(torch.randn(2, width, encoder_width) * encoder_width**-0.5)
        self.output_proj = nn.Parameter(torch.randn(2, codebook_dim, width) * width**-0.5)
        self.register_buffer("entries", torch.zeros(CODEBOOKS, size, width))
        self.register_buffer("spoken", torch.zeros(CODEBOOKS, size, width))
        self.register_buffer("uses", torch.ones(CODEBOOKS, size))
        self.register_buffer("sums", torch.zeros(CODEBOOKS, size, width))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        # What `ready` says, without asking the device: a captured step must not.
        self.begun = False
        self.register_load_state_dict_post_hook(_read_ready)

    def forward(self, x: Tensor, *, books: Tensor | None = None) -> Quantised:
        """x [batch, frames, encoder width]. `books` [batch]: how many of the 16 each row may use (the others add
        nothing, so that the first ones learn to carry most)."""
        x = x.float()
        semantic, acoustic = (x @ projection.T for projection in self.input_proj)
        if self.training and not self.begun:
            self._begin(semantic.detach().flatten(0, 1), acoustic.detach().flatten(0, 1))
        entry, first_codes, commitment = self._quantise(semantic, 0)
        first = _straight_through(semantic, entry)
        total, residual = torch.zeros_like(acoustic), acoustic
        codes = [first_codes]
        for book in range(1, CODEBOOKS):
            entry, code, miss = self._quantise(residual, book)
            used = 1.0 if books is None else (books > book).float()[:, None, None]
            total = total + entry * used
            residual = residual - entry
            commitment = commitment + miss
            codes.append(code)
        # Once, behind the sum: entry by entry the gradient would count as often as there are codebooks.
        total = _straight_through(acoustic if books is None else acoustic * (books > 1)[:, None, None], total)
        latent = first @ self.output_proj[0].T + total @ self.output_proj[1].T
        return Quantised(latent, first, torch.stack(codes, dim=-1), commitment / CODEBOOKS)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """As the shipped quantiser: codes only, nothing learnt."""
        assert not self.training
        return self(x).codes

    def latent_of(self, codes: Tensor) -> Tensor:
        """codes [batch, frames, 16] -> latent, as the decoder's tables give it."""
        # The gradient of index_select adds; that of an index in brackets sorts first.
        entries = [
            self.spoken[book].index_select(0, codes[..., book].flatten()).view(*codes.shape[:-1], self.width)
            for book in range(CODEBOOKS)
        ]
        return entries[0] @ self.output_proj[0].T + torch.stack(entries[1:]).sum(0) @ self.output_proj[1].T

    def _quantise(self, x: Tensor, book: int) -> tuple[Tensor, Tensor, Tensor]:
        flat = x.detach().flatten(0, -2)
        codes = torch.cdist(flat[None], self.entries[book][None])[0].argmin(-1)
        chosen = self.entries[book][codes].view_as(x)
        if self.training:
            self._follow(flat, codes, book)
        return chosen, codes.view(x.shape[:-1]), (x - chosen).square().mean()

    @torch.no_grad()
    def _follow(self, flat: Tensor, codes: Tensor, book: int) -> None:
        counts = torch.zeros_like(self.uses[book]).index_add_(0, codes, torch.ones_like(codes, dtype=torch.float32))
        sums = torch.zeros_like(self.sums[book]).index_add_(0, codes, flat)
        self.uses[book].lerp_(counts, 1 - _DECAY)
        self.sums[book].lerp_(sums, 1 - _DECAY)
        uses = self.uses[book]
        dead = uses < _DEAD_USES * uses.mean()
        places = torch.randint(len(flat), (self.size,), device=flat.device)
        mean = uses.mean()
        self.sums[book] = torch.where(dead[:, None], flat[places] * mean, self.sums[book])
        self.uses[book] = torch.where(dead, mean, uses)
        self.entries[book] = self.sums[book] / self.uses[book].clamp(min=1e-5)[:, None]

    @torch.no_grad()
    def _begin(self, semantic: Tensor, acoustic: Tensor) -> None:
        """Each codebook starts as the k-means of what reaches it."""
        for book in range(CODEBOOKS):
            data = semantic if book == 0 else acoustic
            entries, codes, counts = _kmeans(data, self.size)
            self.entries[book], self.uses[book] = entries, counts.clamp(min=1e-2)
            self.sums[book] = entries * self.uses[book][:, None]
            if book:
                acoustic = acoustic - entries[codes]
        self.ready.fill_(True)
        self.begun = True


def _read_ready(module: nn.Module, _: Any) -> None:
    assert isinstance(module, SplitQuantizer)
    module.begun = bool(module.ready)


def _straight_through(x: Tensor, chosen: Tensor) -> Tensor:
    """The entries' value, the input's gradient."""
    return x + (chosen - x).detach()


def _kmeans(data: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    places = torch.randint(len(data), (size,), device=data.device)
    entries = data[places] + 1e-3 * torch.randn_like(data[places]) * data.std()
    codes, counts = places, places
    for _ in range(_KMEANS_ROUNDS):
        codes = torch.cdist(data[None], entries[None])[0].argmin(-1)
        counts = torch.bincount(codes, minlength=size).float()
        sums = torch.zeros_like(entries).index_add_(0, codes, data)
        fresh = data[torch.randint(len(data), (size,), device=data.device)]
        entries = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], fresh)
    codes = torch.cdist(data[None], entries[None])[0].argmin(-1)
    return entries, codes, torch.bincount(codes, minlength=size).float()
