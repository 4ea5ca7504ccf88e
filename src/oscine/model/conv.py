"""Causal convolutions for streams that arrive in pieces; the caller's History keeps their earlier columns.

On a CPU they are matrix products over strided views: PyTorch's convolutions of several rows, or with dilation, take
five to ten times as long there (measured on two ARM cores, widths of 4 to 64). The weights keep their layout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oscine.model.streaming import History


def _prefers_products(x: Tensor) -> bool:
    """Whether to use matrix products. An exported graph holds real convolutions, which are fast in other runtimes."""
    return not x.is_cuda and not torch.compiler.is_compiling()


class CausalConv(nn.Conv1d):
    """Reads the current and earlier columns only."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation, groups=groups)
        assert groups in (1, inputs), groups
        self.taps, self.step, self.depthwise = kernel, dilation, groups > 1
        self.past = (kernel - 1) * dilation

    def forward(self, x: Tensor, history: History) -> Tensor:  # type: ignore[override]
        joined = history.join(x, self.past) if self.past else x
        return self._as_product(joined, x.shape[-1]) if _prefers_products(x) else super().forward(joined)

    def _as_product(self, joined: Tensor, columns: int) -> Tensor:
        assert self.bias is not None
        batch, channels, _ = joined.shape
        row, channel, column = joined.stride()
        strides = (row, channel, self.step * column, column)
        seen = joined.as_strided((batch, channels, self.taps, columns), strides)
        if self.depthwise:
            mixed = (seen * self.weight[:, 0, :, None]).sum(2)
        else:
            mixed = self.weight.flatten(1) @ seen.reshape(batch, channels * self.taps, columns)
        return mixed + self.bias[:, None]


class CausalUpsample(nn.ConvTranspose1d):
    """Transposed convolution with a kernel of one or two strides; drops columns that depend on later input."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride)
        assert kernel in (stride, 2 * stride), (kernel, stride)
        self.past = kernel // stride - 1
        self.rate = stride

    def forward(self, x: Tensor, history: History) -> Tensor:  # type: ignore[override]
        joined = history.join(x, self.past) if self.past else x
        if _prefers_products(x):
            return self._as_product(joined, x.shape[-1])
        return super().forward(joined).narrow(-1, self.past * self.rate, x.shape[-1] * self.rate)

    def _as_product(self, joined: Tensor, columns: int) -> Tensor:
        """Each input column makes one kernel length of outputs; its second half overlaps the next column's first."""
        assert self.bias is not None
        spread = self.weight.flatten(1).T @ joined
        spread = spread.unflatten(1, (self.out_channels, self.past + 1, self.rate))
        made = spread[:, :, 0, :, self.past :]  # [batch, outputs, rate, columns]
        if self.past:
            made = made + spread[:, :, 1, :, :-1]
        return made.transpose(2, 3).reshape(len(joined), self.out_channels, columns * self.rate) + self.bias[:, None]


class Snake(nn.Module):
    """x + sin(x * exp(alpha))^2 / exp(beta), per channel."""

    rate: Tensor
    depth: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def prepare(self) -> None:
        """Computes the exponentials once, after loading."""
        self.register_buffer("rate", self.alpha.data.exp()[:, None], persistent=False)
        self.register_buffer("depth", 1.0 / (self.beta.data.exp() + 1e-9)[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        wave = torch.sin(x * self.rate)
        return torch.addcmul(x, wave * self.depth, wave)
