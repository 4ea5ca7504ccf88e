"""Teaches one head of some layers to look at the word that is being spoken.

Left to itself a small talker first learns how sound goes on, which is most of its loss, and speaks fluent nonsense for
thousands of steps before it finds its place in the text. Here it is told the place (words.py knows it).
"""

from __future__ import annotations

import paths  # noqa: F401
import torch
from batches import Batch
from torch import Tensor, nn

from oscine.model.layers import Attention

_HEAD = 0  # of the queries; it shares the first head of the keys


class Guide:
    def __init__(self, layers: nn.ModuleList) -> None:
        """Those in the middle: before them it is heard what was said last, behind them it is known what comes next."""
        middle = len(layers) // 2
        self._parts: list[Attention] = [layer.attention for layer in layers[max(0, middle - 1) : middle + 1]]
        for part in self._parts:
            part.seen = ()  # type: ignore[assignment]  # filled by modules.py

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """How far the heads look elsewhere (the negative log of their share on the word, mean over frames), and how
        often most of it is on the word. After the talker's forward."""
        rows = batch.text_words.shape[1]
        wanted = batch.text_words.new_full((batch.text_words.numel(),), -1)
        wanted = wanted.index_copy(0, batch.frame_rows.long() - 1, batch.frame_words).view(-1, rows, 1)
        seen = torch.ones(rows, rows, dtype=torch.bool, device=wanted.device).tril()
        # A word that is still to come, as in streamed text, cannot be looked at.
        right = (batch.text_words[:, None] == wanted) & (wanted >= 0) & seen
        known = right.any(-1)
        shares = []
        for part in self._parts:
            q, k = (heads[:, _HEAD] for heads in part.seen)
            scores = (q @ k.transpose(1, 2)).float() * part.head_dim**-0.5
            scores = scores.masked_fill(~seen, -torch.inf)
            looked = scores.masked_fill(~right, -torch.inf).masked_fill(~known[..., None], 0.0)
            shares.append(looked.logsumexp(-1) - scores.logsumexp(-1))
            part.seen = ()  # type: ignore[assignment]
        count = known.sum().clamp(min=1)
        missed = -torch.stack(shares).mean(0).masked_fill(~known, 0.0).sum() / count
        found = ((shares[-1] > -0.7) & known).sum() / count  # -0.7: half of it
        return missed, found
