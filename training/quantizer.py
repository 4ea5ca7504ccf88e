"""The split residual quantizer for training: one semantic codebook and fifteen acoustic ones, each for the residual of
the previous ones. Codebooks follow the data by moving averages; unused entries are moved to data points. Only the first
`active` codebooks are used: the entries of the others are zero, and their code is always 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import paths  # noqa: F401
import torch
from torch import Tensor, nn

from oscine.frames import CODEBOOKS

_DECAY = 0.99  # for small batches: a few hundred rows for 256 entries
_DEAD_USES = 0.1  # relative to the mean use of an entry
_KMEANS_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Quantised:
    latent: Tensor  # [batch, frames, codebook_dim], with gradients to the encoder
    semantic: Tensor  # [batch, frames, width], the semantic entry alone, with straight-through gradients
    codes: Tensor  # [batch, frames, 16]
    commitment: Tensor


class SplitQuantizer(nn.Module):
    entries: Tensor  # [16, size, width]
    spoken: nn.Parameter  # like entries, as the decoder uses them; equal until the codes are frozen
    uses: Tensor  # [16, size], moving averages
    sums: Tensor
    ready: Tensor

    def __init__(self, encoder_width: int, codebook_dim: int, size: int, active: int) -> None:
        super().__init__()
        width = codebook_dim // 2
        self.size, self.width, self.active = size, width, active
        self.input_proj = nn.Parameter(torch.randn(2, width, encoder_width) * encoder_width**-0.5)
        self.output_proj = nn.Parameter(torch.randn(2, codebook_dim, width) * width**-0.5)
        self.register_buffer("entries", torch.zeros(CODEBOOKS, size, width))
        self.spoken = nn.Parameter(torch.zeros(CODEBOOKS, size, width))
        self.register_buffer("uses", torch.ones(CODEBOOKS, size))
        self.register_buffer("sums", torch.zeros(CODEBOOKS, size, width))
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))
        # Host copy of `ready`: a captured step must not read the device.
        self.begun = False
        self.register_load_state_dict_post_hook(_read_ready)

    def forward(self, x: Tensor, *, books: Tensor | None = None) -> Quantised:
        """x [batch, frames, encoder width]. `books` [batch]: how many of the 16 codebooks each row uses. Rows with
        fewer make the first codebooks carry the most information."""
        x = x.float()
        semantic, acoustic = (x @ projection.T for projection in self.input_proj)
        if self.training and not self.begun:
            self.begin(semantic.detach().flatten(0, 1), acoustic.detach().flatten(0, 1))
        inputs, codes, chosen = self._search(semantic.detach(), acoustic.detach())
        if self.training:
            self._follow(inputs.flatten(1, 2), codes.flatten(1))
        first = _straight_through(semantic, chosen[0])
        # Entries are not parameters: the residual is the input minus the entries so far.
        misses = (semantic - chosen[0]).square().mean()
        misses = misses + (acoustic - chosen[1:].cumsum(0)).square().mean((1, 2, 3)).sum()
        if books is None:
            total = _straight_through(acoustic, chosen[1:].sum(0))
        else:
            numbers = torch.arange(1, self.active, device=x.device)[:, None]
            used = (books > numbers).float()[..., None, None]
            # Once, after the sum: per entry, the gradient would count once for each codebook.
            total = _straight_through(acoustic * (books > 1)[:, None, None], (chosen[1:] * used).sum(0))
        latent = first @ self.output_proj[0].T + total @ self.output_proj[1].T
        idle = codes.new_zeros(CODEBOOKS - self.active, *codes.shape[1:])
        return Quantised(latent, first, torch.cat((codes, idle)).permute(1, 2, 0), misses / self.active)

    @torch.no_grad()
    def _search(self, semantic: Tensor, acoustic: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The input of each active codebook, the index of the nearest entry, and that entry: [active, batch, frames
        (, width)]."""
        offsets = -0.5 * self.entries.square().sum(-1)  # the nearest entry has the largest x . e - |e|^2 / 2
        inputs, codes, chosen, left = [], [], [], acoustic.flatten(0, 1)
        for book in range(self.active):
            x = semantic.flatten(0, 1) if book == 0 else left
            code = torch.addmm(offsets[book], x, self.entries[book].T).argmax(-1)
            entry = self.entries[book].index_select(0, code)
            inputs.append(x)
            codes.append(code)
            chosen.append(entry)
            if book:
                left = left - entry
        shape = (self.active, *semantic.shape[:2])
        return (
            torch.stack(inputs).view(*shape, self.width),
            torch.stack(codes).view(shape),
            torch.stack(chosen).view(*shape, self.width),
        )

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Like the shipped quantizer: codes only, without updates."""
        assert not self.training
        return self(x).codes

    def latent_of(self, codes: Tensor) -> Tensor:
        """codes [batch, frames, 16] -> latent, from the decoder's tables."""
        # The backward of index_select adds; that of bracket indexing sorts first, which is slower.
        entries = [
            self.spoken[book].index_select(0, codes[..., book].flatten()).view(*codes.shape[:-1], self.width)
            for book in range(CODEBOOKS)
        ]
        return entries[0] @ self.output_proj[0].T + torch.stack(entries[1:]).sum(0) @ self.output_proj[1].T

    @torch.no_grad()
    def _follow(self, inputs: Tensor, codes: Tensor) -> None:
        """Updates the active codebooks. inputs [active, rows, width], codes [active, rows]."""
        (active, rows), device = codes.shape, codes.device
        entries, uses, sums = (one[:active] for one in (self.entries, self.uses, self.sums))
        places = (codes + torch.arange(active, device=device)[:, None] * self.size).flatten()
        new_uses = torch.zeros(active * self.size, device=device)
        new_uses.index_add_(0, places, torch.ones_like(places, dtype=torch.float32))
        new_sums = torch.zeros(active * self.size, self.width, device=device)
        new_sums.index_add_(0, places, inputs.flatten(0, 1))
        uses.lerp_(new_uses.view_as(uses), 1 - _DECAY)
        sums.lerp_(new_sums.view_as(sums), 1 - _DECAY)
        mean = uses.mean(1, keepdim=True)
        dead = uses < _DEAD_USES * mean
        drawn = torch.randint(rows, (active, self.size, 1), device=device)
        fresh = inputs.gather(1, drawn.expand(-1, -1, self.width))
        sums.copy_(torch.where(dead[..., None], fresh * mean[..., None], sums))
        uses.copy_(torch.where(dead, mean, uses))
        entries.copy_(sums / uses.clamp(min=1e-5)[..., None])

    @torch.no_grad()
    def begin(self, semantic: Tensor, acoustic: Tensor) -> None:
        """Initializes each active codebook by k-means of its inputs: [rows, width], many rows per entry."""
        for book in range(self.active):
            data = semantic if book == 0 else acoustic
            entries, codes, counts = _kmeans(data, self.size)
            # As if each entry had been used by one row; the averages settle within a few steps.
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
    """Returns the value of the entries with the gradient of the input."""
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
