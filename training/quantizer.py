"""The split residual quantiser in training: one semantic codebook and fifteen acoustic ones, each for what those before
it left. Codebooks follow the data by moving averages; entries that nobody uses are moved to where data is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import paths  # noqa: F401
import torch
from torch import Tensor, nn

from oscine.frames import CODEBOOKS

_DECAY = 0.99  # small batches: some hundred rows for 256 entries
_DEAD_USES = 0.1  # of the mean use of an entry
_KMEANS_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Quantised:
    latent: Tensor  # [batch, frames, codebook_dim], with gradients to the encoder
    semantic: Tensor  # [batch, frames, width], the semantic entry alone, straight through
    codes: Tensor  # [batch, frames, 16]
    commitment: Tensor


class SplitQuantizer(nn.Module):
    entries: Tensor  # [16, size, width]
    spoken: nn.Parameter  # as entries: what the decoder takes for them. The same, until the codes are fixed
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
        self.spoken = nn.Parameter(torch.zeros(CODEBOOKS, size, width))
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
            self.begin(semantic.detach().flatten(0, 1), acoustic.detach().flatten(0, 1))
        inputs, codes, chosen = self._search(semantic.detach(), acoustic.detach())
        if self.training:
            self._follow(inputs.flatten(1, 2), codes.flatten(1))
        first = _straight_through(semantic, chosen[0])
        # Entries are no parameters: what a book leaves is the input minus the entries up to it.
        misses = (semantic - chosen[0]).square().mean()
        misses = misses + (acoustic - chosen[1:].cumsum(0)).square().mean((1, 2, 3)).sum()
        if books is None:
            total = _straight_through(acoustic, chosen[1:].sum(0))
        else:
            numbers = torch.arange(1, CODEBOOKS, device=x.device)[:, None]
            used = (books > numbers).float()[..., None, None]
            # Once, behind the sum: entry by entry the gradient would count as often as there are codebooks.
            total = _straight_through(acoustic * (books > 1)[:, None, None], (chosen[1:] * used).sum(0))
        latent = first @ self.output_proj[0].T + total @ self.output_proj[1].T
        return Quantised(latent, first, codes.permute(1, 2, 0), misses / CODEBOOKS)

    @torch.no_grad()
    def _search(self, semantic: Tensor, acoustic: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What reaches each codebook, the nearest entry's number, and the entry: [16, batch, frames(, width)]."""
        offsets = -0.5 * self.entries.square().sum(-1)  # the nearest entry has the largest x . e - |e|^2 / 2
        inputs, codes, chosen, left = [], [], [], acoustic.flatten(0, 1)
        for book in range(CODEBOOKS):
            x = semantic.flatten(0, 1) if book == 0 else left
            code = torch.addmm(offsets[book], x, self.entries[book].T).argmax(-1)
            entry = self.entries[book].index_select(0, code)
            inputs.append(x)
            codes.append(code)
            chosen.append(entry)
            if book:
                left = left - entry
        shape = (CODEBOOKS, *semantic.shape[:2])
        return (
            torch.stack(inputs).view(*shape, self.width),
            torch.stack(codes).view(shape),
            torch.stack(chosen).view(*shape, self.width),
        )

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

    @torch.no_grad()
    def _follow(self, inputs: Tensor, codes: Tensor) -> None:
        """All codebooks at once. inputs [16, rows, width], codes [16, rows]."""
        rows = codes.shape[1]
        places = (codes + torch.arange(CODEBOOKS, device=codes.device)[:, None] * self.size).flatten()
        counts = torch.zeros(CODEBOOKS * self.size, device=codes.device)
        counts.index_add_(0, places, torch.ones_like(places, dtype=torch.float32))
        sums = torch.zeros(CODEBOOKS * self.size, self.width, device=codes.device)
        sums.index_add_(0, places, inputs.flatten(0, 1))
        self.uses.lerp_(counts.view_as(self.uses), 1 - _DECAY)
        self.sums.lerp_(sums.view_as(self.sums), 1 - _DECAY)
        mean = self.uses.mean(1, keepdim=True)
        dead = self.uses < _DEAD_USES * mean
        drawn = torch.randint(rows, (CODEBOOKS, self.size, 1), device=codes.device)
        fresh = inputs.gather(1, drawn.expand(-1, -1, self.width))
        self.sums.copy_(torch.where(dead[..., None], fresh * mean[..., None], self.sums))
        self.uses.copy_(torch.where(dead, mean, self.uses))
        self.entries.copy_(self.sums / self.uses.clamp(min=1e-5)[..., None])

    @torch.no_grad()
    def begin(self, semantic: Tensor, acoustic: Tensor) -> None:
        """Each codebook starts as the k-means of what reaches it: [rows, width], many rows for each entry."""
        for book in range(CODEBOOKS):
            data = semantic if book == 0 else acoustic
            entries, codes, counts = _kmeans(data, self.size)
            # As moving averages of a batch of one row for each entry; they find their scale within some steps.
            self.entries[book], self.uses[book] = entries, (counts / counts.mean()).clamp(min=1e-2)
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
