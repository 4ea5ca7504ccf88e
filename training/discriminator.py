"""Waveform discriminators, for training only: by period (as in HiFi-GAN) and by complex spectrogram at several
resolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Judgement = tuple[Tensor, list[Tensor]]  # the verdict, and the features of the layers before it

_SLOPE = 0.1


class PeriodDiscriminator(nn.Module):
    """Judges the signal folded into rows of `period` samples; what repeats with that period forms columns."""

    def __init__(self, period: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self._period = period
        pairs = zip((1, *widths), widths, strict=False)
        # The last layer keeps its length.
        strides = [3] * (len(widths) - 1) + [1]
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(i, o, (5, 1), (stride, 1), padding=(2, 0)))
            for (i, o), stride in zip(pairs, strides, strict=True)
        )
        self.verdict = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)))

    def forward(self, samples: Tensor) -> Judgement:
        x = F.pad(samples, (0, -samples.shape[-1] % self._period)).view(len(samples), 1, -1, self._period)
        return _judged(self.layers, self.verdict, x)


class SpectrumDiscriminator(nn.Module):
    """Judges the real and imaginary parts of a spectrogram as an image."""

    window: Tensor

    def __init__(self, window: int, width: int) -> None:
        super().__init__()
        self._size = window
        self.register_buffer("window", torch.hann_window(window), persistent=False)
        strides = ((1, 2), (1, 2), (1, 2), (1, 1))  # time, frequency
        inputs = (2, width, width, width)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv2d(i, width, (3, 9), stride, padding=(1, 4)))
            for i, stride in zip(inputs, strides, strict=True)
        )
        self.verdict = weight_norm(nn.Conv2d(width, 1, (3, 3), padding=(1, 1)))

    def forward(self, samples: Tensor) -> Judgement:
        spectrum = torch.stft(
            samples.float(), self._size, self._size // 4, window=self.window, normalized=True, return_complex=True
        )
        x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # [batch, 2, times, bins]
        return _judged(self.layers, self.verdict, x)


def _judged(layers: nn.ModuleList, verdict: nn.Module, x: Tensor) -> Judgement:
    features = []
    for layer in layers:
        x = F.leaky_relu(layer(x), _SLOPE)
        features.append(x)
    return verdict(x), features


class Discriminators(nn.Module):
    def __init__(
        self,
        periods: tuple[int, ...] = (2, 3, 5, 7, 11),
        windows: tuple[int, ...] = (2048, 1024, 512),
        widths: tuple[int, ...] = (32, 96, 256, 384, 384),
        spectrum_width: int = 32,
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [
                *(PeriodDiscriminator(period, widths) for period in periods),
                *(SpectrumDiscriminator(window, spectrum_width) for window in windows),
            ]
        )

    def forward(self, samples: Tensor) -> tuple[list[Tensor], list[list[Tensor]]]:
        judged = [part(samples) for part in self.parts]
        return [verdict for verdict, _ in judged], [features for _, features in judged]
