"""Locks the pitch of the teacher to the frames: each has a whole number of quarter periods, and the phase within it is
a parabola.

The number of quarter periods in a frame is rounded, which changes the pitch by at most 1.6 Hz. The phase at the start
of a frame is then a multiple of a quarter period. The codes say the phase of every sample exactly, so the decoder can
know the phases of high harmonics, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from codes import BEND, BENDS_PER_PERIOD, COARSE, FINE, MAX_BEND, QUARTERS, SLOT_QUARTERS
from sizes import FRAME_SAMPLES, RATE_HZ
from torch import Tensor

VALUE_SAMPLES = 300  # per value of the teacher's curves
VOICED_HZ = 50.0  # below, the curve does not say the pitch
_USUAL_HZ = 150.0  # where nothing is voiced
_BEYOND = 2 * math.ceil(FRAME_SAMPLES / VALUE_SAMPLES)  # values after the end, because the last frame is padded


@dataclass(frozen=True, slots=True)
class LockedPitch:
    quarters: Tensor  # [batch, frames], quarter periods in each frame
    bends: Tensor  # [batch, frames], periods in the first half of a frame minus half of those in the frame, rounded
    _first: Tensor  # [batch], sample at which the first frame starts

    def phase(self, samples: int) -> Tensor:
        """[batch, samples], from 0 to 1."""
        place = torch.arange(samples, device=self._first.device) - self._first[:, None]
        frame = (place // FRAME_SAMPLES).clamp(0, self.quarters.shape[1] - 1)
        x = (place - frame * FRAME_SAMPLES) / FRAME_SAMPLES  # beyond 0 to 1 before the first frame and after the last
        starts = (self.quarters.cumsum(1) - self.quarters) % QUARTERS
        start, quarters, bend = (one.gather(1, frame) for one in (starts, self.quarters, self.bends))
        return ((start + quarters * x) / QUARTERS + bend * parabola(x.clamp(0, 1))) % 1


def lock(f0: Tensor, first: Tensor, frames: int) -> LockedPitch:
    """f0 [batch, values] in Hz, 0 where nothing is voiced; `first`: the sample at which each first frame starts."""
    hertz = F.pad(_everywhere(f0)[:, None], (0, _BEYOND), mode="replicate")
    per_sample = F.interpolate(hertz, scale_factor=float(VALUE_SAMPLES), mode="linear")[:, 0]
    passed = F.pad((per_sample.double() / RATE_HZ).cumsum(1), (1, 0))
    last = passed.shape[1] - 1
    starts = first[:, None] + FRAME_SAMPLES * torch.arange(frames + 1, device=f0.device)
    before = passed.gather(1, starts.clamp(max=last))
    middle = passed.gather(1, (starts[:, :-1] + FRAME_SAMPLES // 2).clamp(max=last))
    made = before.diff(dim=1)
    bends = ((middle - before[:, :-1] - made / 2) * BENDS_PER_PERIOD).round().clamp(-MAX_BEND, MAX_BEND)
    return LockedPitch((made * QUARTERS).round().long(), bends.float() / BENDS_PER_PERIOD, first)


def described_phase(codes: Tensor, steps: int) -> Tensor:
    """codes [batch, frames, 16] -> the phase [batch, frames * steps] at the start of each step, in periods."""
    coarse, fine, bend = (codes[..., book, None] for book in (COARSE, FINE, BEND))
    quarters = coarse % 16 * SLOT_QUARTERS + fine // QUARTERS
    x = torch.arange(steps, device=codes.device) / steps
    phase = (fine % QUARTERS + quarters * x) / QUARTERS + (bend - MAX_BEND) / BENDS_PER_PERIOD * parabola(x)
    return phase.flatten(1)


def parabola(x: Tensor) -> Tensor:
    """0 at both ends, 1 in the middle."""
    return 4 * x * (1 - x)


def _everywhere(f0: Tensor) -> Tensor:
    """Interpolates where nothing is voiced. The values beside such a place are not used: they are half-way to 0."""
    count = f0.shape[1]
    voiced = F.max_pool1d((f0 < VOICED_HZ).float()[:, None], 3, 1, 1)[:, 0] == 0
    place = torch.arange(count, device=f0.device).expand_as(f0)
    before = torch.where(voiced, place, -1).cummax(1).values
    after = torch.where(voiced, place, count).flip(1).cummin(1).values.flip(1)
    before, after = torch.where(before < 0, after, before), torch.where(after == count, before, after)
    nothing = before == count
    before, after = before.clamp(max=count - 1), after.clamp(0, count - 1)
    heights = f0.clamp(min=VOICED_HZ).log()
    low, high = heights.gather(1, before), heights.gather(1, after)
    between = low + (high - low) * (place - before) / (after - before).clamp(min=1)
    return torch.where(nothing, _USUAL_HZ, between.exp())
