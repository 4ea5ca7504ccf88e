"""Heads on inner layers of the decoder, for training only: linear, so what they must tell is easy to use there. Without
them the first layers would learn only through a vocoder that cannot use them yet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import paths  # noqa: F401
import torch
from codes import SLOTS, STEPS
from losses import MelLoss
from pitch import described_phase
from sizes import FRAME_SAMPLES
from torch import Tensor, nn

# At 50, 400 and 2,000 columns per second: whose phases must be known, and how many per column. Those of the next rate
# must be known before, because a layer that only raises the rate cannot multiply.
_PHASES = (((1,), 8), ((1,), 5), ((1, 2, 3), 1))
_WINDOW, _BANDS = 512, 64
_STEP_SAMPLES = FRAME_SAMPLES // (SLOTS * STEPS)
_MEAN, _SCALE = -6.0, 2.0  # of the logarithms, about


class PhaseHeads(nn.Module):
    """They tell the phases of the first harmonics, which follow from the codes."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Conv1d(width, 2 * len(orders) * steps, 1)
            for width, (orders, steps) in zip(widths, _PHASES, strict=False)
        )

    def forward(self, stages: Sequence[Tensor], codes: Tensor) -> Tensor:
        """How wrong they are, from 0 to about 1."""
        missed = []
        for head, (orders, steps), x in zip(self.heads, _PHASES, stages, strict=False):
            columns = x.shape[-1] // codes.shape[1]
            phase = 2 * math.pi * described_phase(codes, columns * steps).unflatten(1, (-1, steps)).transpose(1, 2)
            angles = torch.cat([phase * order for order in orders], 1)
            missed.append((head(x).float() - torch.cat((angles.cos(), angles.sin()), 1)).square().mean() * 2)
        return torch.stack(missed).mean()


class SpectrumHead(nn.Module):
    """It tells the spectrum of each step of 5 ms, before the vocoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Conv1d(width, STEPS * _BANDS, 1)
        self._mel = MelLoss(((_WINDOW, _BANDS),))

    def forward(self, x: Tensor, true: Tensor) -> Tensor:
        """x [batch, width, slots], true [batch, samples] -> how wrong it is [batch, slots * 4]: mean distance of the
        logarithms, as in MelLoss."""
        told = self.head(x).float().unflatten(1, (_BANDS, STEPS)).transpose(2, 3).flatten(2) * _SCALE + _MEAN
        logs = self._mel.log_mel(true, _WINDOW, _STEP_SAMPLES)[..., : told.shape[-1]]
        return (told - logs).abs().mean(1)
