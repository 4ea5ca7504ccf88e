"""Trains one attention head of some layers to attend to the word that is being spoken.

Without this, a small talker first learns to continue audio, which is most of its loss, and speaks fluent nonsense for
thousands of steps before it learns to read the text. The word of each frame comes from the teacher (speech.py).
"""

from __future__ import annotations

import paths  # noqa: F401
import torch
from batches import Batch
from torch import Tensor, nn

from oscine.model.layers import Attention

_HEAD = 0  # query head 0, which uses key head 0


class Guide:
    def __init__(self, layers: nn.ModuleList) -> None:
        """Guides the middle layers: earlier ones process the last audio, later ones predict the next."""
        middle = len(layers) // 2
        self._parts: list[Attention] = [layer.attention for layer in layers[max(0, middle - 1) : middle + 1]]
        for part in self._parts:
            part.seen = ()  # type: ignore[assignment]  # filled by modules.py

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The guide loss (negative log of the attention on the spoken word, mean over frames), and the share of frames
        with more than half of the attention on it. Call after the talker's forward."""
        rows = batch.text_words.shape[1]
        wanted = batch.text_words.new_full((batch.text_words.numel(),), -1)
        wanted = wanted.index_copy(0, batch.frame_rows.long() - 1, batch.frame_words).view(-1, rows, 1)
        seen = torch.ones(rows, rows, dtype=torch.bool, device=wanted.device).tril()
        # With streaming text, the word may not have arrived yet.
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
        found = ((shares[-1] > -0.7) & known).sum() / count  # log(0.5) is -0.7
        return missed, found
