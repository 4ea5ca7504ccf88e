"""A small phone recognizer, for training only: it learns on the true audio, and the decoder must let it recognize the
same phones in its own. A spectrum can be close to the true one and still be another vowel."""

from __future__ import annotations

import paths  # noqa: F401
import torch
import torch.nn.functional as F
from sizes import RATE_HZ
from teacher import LABEL_SAMPLES, PHONE_COUNT
from torch import Tensor, nn

from oscine.model.encoders import slaney_mel_filters

_WINDOW, _BANDS, _WIDTH = 1024, 80, 192


class PhoneRecognizer(nn.Module):
    """It sees 60 ms around each label, too little to guess phones from words."""

    filters: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filters", slaney_mel_filters(RATE_HZ, _WINDOW, _BANDS), persistent=False)
        self.register_buffer("window", torch.hann_window(_WINDOW), persistent=False)
        self.layers = nn.ModuleList(nn.Conv1d(width, _WIDTH, 5, padding=2) for width in (_BANDS, _WIDTH, _WIDTH))
        self.head = nn.Conv1d(_WIDTH, PHONE_COUNT, 1)

    def forward(self, samples: Tensor) -> Tensor:
        """[batch, samples] -> logits [batch, phones, labels]."""
        spectrum = torch.stft(samples.float(), _WINDOW, LABEL_SAMPLES // 2, window=self.window, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1)
        x = ((self.filters @ power).clamp(min=1e-6).log() + 4) / 4  # near zero mean and unit variance
        for layer in self.layers:
            x = F.gelu(layer(x))
        return self.head(x[..., 1::2])  # every second column is the middle of a label
