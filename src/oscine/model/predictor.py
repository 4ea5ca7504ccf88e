"""The code predictor: codes 1..15 of a frame, in order, from the talker's hidden state and code 0.

The runner loops over the codebooks, since it samples between the predictor's passes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.frames import CODEBOOKS
from oscine.model.config import PredictorConfig
from oscine.model.layers import Stack
from oscine.model.streaming import ContiguousKVCache


class Predictor(nn.Module):
    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config
        width = config.stack.width
        # Stacked, so that one gather reads a whole frame. Entry j embeds code j + 1 in the talker's width.
        self.embeddings = nn.Parameter(torch.empty(CODEBOOKS - 1, config.vocab, config.talker_width))
        self.heads = nn.Parameter(torch.empty(CODEBOOKS - 1, config.vocab, width))
        self.narrow = nn.Linear(config.talker_width, width) if config.talker_width != width else nn.Identity()
        self.stack = Stack(config.stack)

    def cache(self, batch: int) -> ContiguousKVCache:
        return ContiguousKVCache(self.config.stack, batch, CODEBOOKS, like=self.heads)

    def first(self, hidden: Tensor, code_rows: Tensor, cache: ContiguousKVCache) -> Tensor:
        """Logits of code 1, from the talker's hidden state and its embedding of code 0, [batch, width] each."""
        rows = self.narrow(torch.stack((hidden, code_rows), dim=1))
        return self._logits(self.stack(rows, cache.prefill(2))[:, -1], 0)

    def next(self, book: int, codes: Tensor, cache: ContiguousKVCache) -> Tensor:
        """Logits of code `book` + 1, given code `book` (1..14) as [batch]."""
        rows = self.narrow(F.embedding(codes, self.embeddings[book - 1]))[:, None]
        return self._logits(self.stack(rows, cache.append(book + 1))[:, 0], book)

    def embed(self, codes: Tensor) -> Tensor:
        """codes 1..15 as [batch, 15] -> [batch, 15, talker width]."""
        offsets = torch.arange(CODEBOOKS - 1, device=codes.device) * self.config.vocab
        return F.embedding(codes + offsets, self.embeddings.flatten(0, 1))

    def _logits(self, hidden: Tensor, head: int) -> Tensor:
        return F.linear(hidden, self.heads[head]).float()
