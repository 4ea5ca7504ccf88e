"""Losses between a decoded waveform and the true one: spectrograms at several resolutions, and discriminators."""

from __future__ import annotations

from collections.abc import Sequence

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from sizes import RATE_HZ
from torch import Tensor, nn

from oscine.model.encoders import slaney_mel_filters

_SCALES = ((2048, 128), (1024, 80), (512, 64), (256, 32), (128, 16))  # window in samples, mel bands
_FLOOR = 5e-5  # 86 dB below a full-scale sine; anything quieter is ignored


class MelLoss(nn.Module):
    def __init__(self, scales: Sequence[tuple[int, int]] = _SCALES) -> None:
        super().__init__()
        self._scales = tuple(scales)
        for window, bands in self._scales:
            filters = slaney_mel_filters(RATE_HZ, window, bands)
            # Rows sum to one and are divided by the window's gain: a full-scale sine is near one at any resolution.
            filters = filters / filters.sum(1, keepdim=True).clamp(min=1e-8) / (window / 4)
            self.register_buffer(f"filters_{window}", filters, persistent=False)
            self.register_buffer(f"window_{window}", torch.hann_window(window), persistent=False)

    def mel(self, samples: Tensor, window: int, hop: int) -> Tensor:
        shape, filters = getattr(self, f"window_{window}"), getattr(self, f"filters_{window}")
        spectrum = torch.stft(samples.float(), window, hop, window=shape, return_complex=True)
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-12).sqrt()
        return filters @ magnitude

    def log_mel(self, samples: Tensor, window: int, hop: int) -> Tensor:
        return self.mel(samples, window, hop).clamp(min=_FLOOR).log()

    def forward(self, made: Tensor, true: Tensor, weights: Tensor | None = None) -> Tensor:
        """L1 distance of log magnitudes plus that of linear ones, mean over the resolutions. `weights` [batch, any]: of
        the logarithms, over time."""
        total = made.new_zeros(())
        for window, _ in self._scales:
            ours, theirs = self.mel(made, window, window // 4), self.mel(true, window, window // 4)
            distance = (ours.clamp(min=_FLOOR).log() - theirs.clamp(min=_FLOOR).log()).abs().mean(1)
            if weights is not None:
                there = F.interpolate(weights[:, None], size=distance.shape[-1], mode="linear")[:, 0]
                distance = distance * (there / there.mean())
            total = total + distance.mean() + (ours - theirs).abs().mean() / (theirs.abs().mean() + 1e-3)
        return total / len(self._scales)


_PHASE_WINDOW, _PHASE_HZ = 1024, 3000


def phase_loss(made: Tensor, true: Tensor) -> Tensor:
    """L1 distance of complex spectra up to 3,000 Hz, relative to the true one: the phases of the harmonics, which the
    codes say."""
    window = torch.hann_window(_PHASE_WINDOW, device=made.device)
    bins = _PHASE_HZ * _PHASE_WINDOW // RATE_HZ
    ours, theirs = (
        torch.view_as_real(torch.stft(one, _PHASE_WINDOW, _PHASE_WINDOW // 4, window=window, return_complex=True))[
            :, :bins
        ]
        for one in (made, true)
    )
    distance = ((ours - theirs).square().sum(-1) + 1e-6).sqrt().mean()
    return distance / ((theirs.square().sum(-1) + 1e-6).sqrt().mean() + 1e-3)


_STFT_WINDOWS = (512, 1024, 2048)


def stft_distance(made: Tensor, true: Tensor) -> Tensor:
    """Multi-resolution STFT loss: spectral convergence plus L1 of log magnitudes, mean over three resolutions. For
    evaluation only."""
    total = made.new_zeros(())
    for size in _STFT_WINDOWS:
        window = torch.hann_window(size, device=made.device)
        ours, theirs = (
            torch.stft(one, size, size // 4, window=window, return_complex=True).abs().clamp(min=1e-5)
            for one in (made, true)
        )
        total = total + (ours - theirs).norm() / theirs.norm() + (ours.log() - theirs.log()).abs().mean()
    return total / len(_STFT_WINDOWS)


def discriminator_loss(true: Sequence[Tensor], made: Sequence[Tensor]) -> Tensor:
    """Least squares: target 1 for true audio, 0 for decoded."""
    parts = [(1 - t.float()).square().mean() + m.float().square().mean() for t, m in zip(true, made, strict=True)]
    return torch.stack(parts).mean()


def adversarial_loss(made: Sequence[Tensor]) -> Tensor:
    return torch.stack([(1 - verdict.float()).square().mean() for verdict in made]).mean()


def feature_loss(true: Sequence[Sequence[Tensor]], made: Sequence[Sequence[Tensor]]) -> Tensor:
    """Relative distance per layer, so that the scale of a layer does not matter; sum over layers, mean over
    discriminators."""
    parts = []
    for ours, theirs in zip(made, true, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            b = b.detach().float()
            parts.append((a.float() - b).abs().mean() / (b.abs().mean() + 1e-4))
    return torch.stack(parts).sum() / len(made)
