"""The codec encoder (Mimi's): a reference clip -> the codes of its frames, for in-context cloning with Base
checkpoints.

It runs once per voice, over the whole clip, and keeps no state between calls.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.config import CodecEncoderConfig
from oscine.model.layers import Stack
from oscine.model.streaming import ContiguousKVCache


class StridedConv(nn.Conv1d):
    """A causal convolution that pads the right end to a whole number of strides."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, bias: bool = True, pad: str = "constant"
    ) -> None:
        super().__init__(inputs, outputs, kernel, stride=stride, bias=bias)
        self.left, self.rate, self.pad = kernel - stride, stride, pad

    def forward(self, x: Tensor) -> Tensor:
        right = -x.shape[-1] % self.rate
        return super().forward(F.pad(x, (self.left, right), mode=self.pad))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv1 = StridedConv(channels, channels // 2, kernel)
        self.conv2 = StridedConv(channels // 2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.elu(self.conv1(F.elu(x))))


class Quantizer(nn.Module):
    """Quantizes to one semantic code and fifteen acoustic codes of residuals; the two use separate projections."""

    entries: Tensor

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.codebook_dim
        self.embedding_sum = nn.Parameter(torch.empty(CODEBOOKS, config.codebook_size, width))
        self.cluster_usage = nn.Parameter(torch.empty(CODEBOOKS, config.codebook_size))
        self.input_proj = nn.Parameter(torch.empty(2, width, config.stack.width, 1))  # semantic, acoustic

    def prepare(self) -> None:
        entries = self.embedding_sum.data / self.cluster_usage.data.clamp(min=1e-5)[..., None]
        self.register_buffer("entries", entries, persistent=False)
        del self.embedding_sum, self.cluster_usage

    def forward(self, x: Tensor) -> Tensor:
        """x [frames, width] -> codes [frames, 16]."""
        semantic, acoustic = (x @ projection[..., 0].T for projection in self.input_proj)
        codes = [self._nearest(semantic, 0)]
        for book in range(1, CODEBOOKS):
            codes.append(self._nearest(acoustic, book))
            acoustic = acoustic - self.entries[book][codes[-1]]
        return torch.stack(codes, dim=1)

    def _nearest(self, x: Tensor, book: int) -> Tensor:
        return torch.cdist(x[None], self.entries[book][None])[0].argmin(dim=-1)


class CodecEncoder(nn.Module):
    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.filters
        self.first = StridedConv(1, channels, config.kernel)
        self.residuals, self.downs = nn.ModuleList(), nn.ModuleList()
        for ratio in config.ratios:
            self.residuals.append(ResidualBlock(channels, config.residual_kernel))
            self.downs.append(StridedConv(channels, 2 * channels, 2 * ratio, ratio))
            channels *= 2
        self.last = StridedConv(channels, config.stack.width, config.last_kernel)
        self.stack = Stack(config.stack)
        # Halves 25 Hz to 12.5 Hz.
        self.downsample = StridedConv(config.stack.width, config.stack.width, 4, 2, bias=False, pad="replicate")
        self.quantizer = Quantizer(config)

    @torch.inference_mode()
    def forward(self, samples: Tensor) -> Tensor:
        """samples [n] at the codec's rate -> codes [ceil(n / samples_per_frame), 16]."""
        x = self.first(samples[None, None])
        for residual, down in zip(self.residuals, self.downs, strict=True):
            x = down(F.elu(residual(x)))
        x = self.last(F.elu(x)).transpose(1, 2)
        cache = ContiguousKVCache(self.config.stack, 1, x.shape[1], like=x).prefill(x.shape[1])
        x = self.downsample(self.stack(x, cache).transpose(1, 2))
        return self.quantizer(x[0].T)
