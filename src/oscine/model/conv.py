"""Causal convolutions that can be fed in pieces: what they remember goes through a History that the caller holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oscine.model.memory import History


class CausalConv(nn.Conv1d):
    """Sees its own and earlier columns only."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.past = (kernel - 1) * dilation

    def forward(self, x: Tensor, history: History) -> Tensor:  # type: ignore[override]
        return super().forward(history.join(x, self.past) if self.past else x)


class CausalUpsample(nn.ConvTranspose1d):
    """Transposed convolution with kernel = overlap * stride; the columns that would need the future are dropped."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride)
        assert kernel % stride == 0, (kernel, stride)
        self.past = kernel // stride - 1
        self.rate = stride

    def forward(self, x: Tensor, history: History) -> Tensor:  # type: ignore[override]
        columns = x.shape[-1] * self.rate
        full = super().forward(history.join(x, self.past) if self.past else x)
        return full.narrow(-1, self.past * self.rate, columns)


class Snake(nn.Module):
    """x + sin(x * exp(alpha))^2 / exp(beta), per channel."""

    rate: Tensor
    depth: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def prepare(self) -> None:
        """After loading: the exponentials once, not per call."""
        self.register_buffer("rate", self.alpha.data.exp()[:, None], persistent=False)
        self.register_buffer("depth", 1.0 / (self.beta.data.exp() + 1e-9)[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        wave = torch.sin(x * self.rate)
        return torch.addcmul(x, wave * self.depth, wave)
