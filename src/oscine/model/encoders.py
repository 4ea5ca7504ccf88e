"""The encoders of Base checkpoints: codec encoder (a reference clip -> the codes of its frames) and speaker encoder (a
clip -> a speaker vector).

They run once per voice, over the whole clip, and keep no state between calls.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oscine.audio.pcm import CODEBOOKS
from oscine.model.config import CodecEncoderConfig, SpeakerEncoderConfig
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


# --- The speaker encoder (ECAPA-TDNN): a clip -> a speaker vector, over a log-mel spectrogram.

FFT_SAMPLES = 1024
HOP_SAMPLES = 256
PAD_SAMPLES = (FFT_SAMPLES - HOP_SAMPLES) // 2


def slaney_mel_filters(rate_hz: int, fft: int, bins: int) -> Tensor:
    """Returns triangles of equal area, [bins, fft / 2 + 1]: linear below 1 kHz, logarithmic above (Slaney's scale)."""
    linear_hz, knee_hz = 200.0 / 3, 1000.0
    knee_mel = knee_hz / linear_hz
    log_step = math.log(6.4) / 27.0

    def to_mel(hz: float) -> float:
        return hz / linear_hz if hz < knee_hz else knee_mel + math.log(hz / knee_hz) / log_step

    def to_hz(mel: Tensor) -> Tensor:
        return torch.where(mel < knee_mel, mel * linear_hz, knee_hz * torch.exp(log_step * (mel - knee_mel)))

    edges = to_hz(torch.linspace(0.0, to_mel(rate_hz / 2), bins + 2, dtype=torch.float64))
    bin_hz = torch.linspace(0.0, rate_hz / 2, fft // 2 + 1, dtype=torch.float64)
    widths = edges.diff()
    rising = (bin_hz - edges[:-2, None]) / widths[:-1, None]
    falling = (edges[2:, None] - bin_hz) / widths[1:, None]
    area = 2.0 / (edges[2:] - edges[:-2])
    return (torch.minimum(rising, falling).clamp(min=0) * area[:, None]).float()


class ReflectConv(nn.Module):
    """Convolution that keeps the length by reflecting the ends."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation)
        self.pad = dilation * (kernel - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.pad, self.pad), mode="reflect") if self.pad else x)


class Res2Net(nn.Module):
    """Channel groups in a chain: each reads its own input plus the previous group's output."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        group = channels // scale
        self.scale = scale
        self.blocks = nn.ModuleList(ReflectConv(group, group, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        groups = list(x.chunk(self.scale, dim=1))
        for i, block in enumerate(self.blocks, start=1):
            groups[i] = F.relu(block(groups[i] + groups[i - 1] if i > 1 else groups[i]))
        return torch.cat(groups, dim=1)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, inner, 1)
        self.conv2 = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(-1, keepdim=True)))))


class SERes2NetBlock(nn.Module):
    def __init__(self, config: SpeakerEncoderConfig, index: int) -> None:
        super().__init__()
        channels = config.channels[index]
        self.tdnn1 = ReflectConv(config.channels[index - 1], channels)
        self.res2net = Res2Net(channels, config.res2net_scale, config.kernels[index], config.dilations[index])
        self.tdnn2 = ReflectConv(channels, channels)
        self.squeeze = SqueezeExcite(channels, config.se_channels)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.res2net(F.relu(self.tdnn1(x)))
        return x + self.squeeze(F.relu(self.tdnn2(mixed)))


class AttentivePooling(nn.Module):
    """Mean and deviation over time, weighted by attention that also reads the unweighted mean and deviation."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.tdnn = ReflectConv(3 * channels, inner)
        self.conv = nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.shape[-1]
        mean, deviation = _statistics(x, 1.0 / frames)
        context = torch.cat((x, mean.expand_as(x), deviation.expand_as(x)), dim=1)
        weights = torch.softmax(self.conv(torch.tanh(F.relu(self.tdnn(context)))), dim=-1)
        return torch.cat(_statistics(x, weights), dim=1)


def _statistics(x: Tensor, weights: Tensor | float) -> tuple[Tensor, Tensor]:
    mean = (weights * x).sum(-1, keepdim=True)
    variance = (weights * (x - mean) ** 2).sum(-1, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    filters: Tensor
    window: Tensor

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.channels
        self.first = ReflectConv(config.mel_bins, channels[0], config.kernels[0], config.dilations[0])
        self.blocks = nn.ModuleList(SERes2NetBlock(config, index) for index in range(1, len(channels) - 1))
        self.merge = ReflectConv(sum(channels[1:-1]), channels[-1], config.kernels[-1], config.dilations[-1])
        self.pooling = AttentivePooling(channels[-1], config.attention_channels)
        self.last = nn.Conv1d(2 * channels[-1], config.width, 1)

    def prepare(self) -> None:
        device = self.last.weight.device
        filters = slaney_mel_filters(self.config.sample_rate_hz, FFT_SAMPLES, self.config.mel_bins)
        self.register_buffer("filters", filters.to(device), persistent=False)
        self.register_buffer("window", torch.hann_window(FFT_SAMPLES, device=device), persistent=False)

    def mel(self, samples: Tensor) -> Tensor:
        """samples [batch, n] -> log-mel [batch, bins, frames], in fp32."""
        padded = F.pad(samples, (PAD_SAMPLES, PAD_SAMPLES), mode="reflect")
        spectrum = torch.stft(padded, FFT_SAMPLES, HOP_SAMPLES, window=self.window, center=False, return_complex=True)
        return self.log_mel(torch.view_as_real(spectrum).square().sum(-1))

    def log_mel(self, power: Tensor) -> Tensor:
        """power [batch, FFT / 2 + 1, frames] -> [batch, bins, frames]."""
        return (self.filters @ (power + 1e-9).sqrt()).clamp(min=1e-5).log()

    @torch.inference_mode()
    def forward(self, samples: Tensor) -> Tensor:
        """samples [batch, n] at 24 kHz -> [batch, width]."""
        return self.embed(self.mel(samples))

    def embed(self, mel: Tensor) -> Tensor:
        x = F.relu(self.first(mel.to(self.last.weight.dtype)))
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
        merged = F.relu(self.merge(torch.cat(outputs, dim=1)))
        return self.last(self.pooling(merged))[..., 0]
