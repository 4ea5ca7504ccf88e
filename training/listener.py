"""Hears phones in a waveform, for training only: what it hears in the true sound, the decoder must let it hear in its
own. A spectrum can be near to the true one and still be another vowel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sizes import RATE_HZ
from teacher import LABEL_SAMPLES, PHONES
from torch import Tensor, nn

from oscine.model.speaker_encoder import slaney_mel_filters

_WINDOW, _BANDS, _WIDTH = 1024, 80, 192


class Listener(nn.Module):
    """It looks 60 ms around: what it hears is the sound, not what words would make likely."""

    filters: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", slaney_mel_filters(RATE_HZ, _WINDOW, _BANDS), persistent=False)
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        self.layers = nn.ModuleList(nn.Conv1d(i, _WIDTH, 5, padding=2) for i in (_BANDS, _WIDTH, _WIDTH))
        self.told = nn.Conv1d(_WIDTH, len(PHONES), 1)

    def forward(self, samples: Tensor) -> Tensor:
        """[batch, samples] -> logits [batch, phones, labels]."""
        spectrum = torch.stft(samples.float(), _WINDOW, LABEL_SAMPLES // 2, window=self.window, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        x = ((self.filters @ power).clamp(min=1e-6).log() + 4) / 4  # near zero mean and unit variance
        for layer in self.layers:
            x = F.gelu(layer(x))
        # Every other column is the middle of a label.
        return self.told(x[..., 1::2])
