"""The talker: maps text rows plus code rows to a hidden state and the logits of code 0, once per frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.model.config import TalkerConfig
from oscine.model.layers import Stack


class Talker(nn.Module):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.config = config
        width = config.stack.width
        # The plain constructor draws random numbers, which on the meta device imports torch._dynamo (2 s, 70 MB).
        self.text_embedding = nn.Embedding.from_pretrained(torch.empty(config.text_vocab, config.text_width))
        self.text_in = nn.Linear(config.text_width, config.text_width)
        self.text_out = nn.Linear(config.text_width, width)
        self.code_embedding = nn.Embedding.from_pretrained(torch.empty(config.code_vocab, width))
        self.stack = Stack(config.stack)
        self.head = nn.Linear(width, config.code_vocab, bias=False)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    def text_rows(self, text_ids: Tensor) -> Tensor:
        return self.text_out(F.silu(self.text_in(self.text_embedding(text_ids))))

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden).float()
