"""Two helpers of codec.py with their state on the device, so that a CUDA graph can hold them: gradient balancing and a
moving average of weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_NORM_DECAY = 0.99
_MAX_DECAY = 0.999


class Balance:
    """Adds the discriminators' gradient to that of the mel loss, scaled to `share` times the norm of the mel gradient.
    The scales of the losses then do not matter."""

    def __init__(self, device: torch.device) -> None:
        self.share = torch.zeros((), device=device)
        self._norms = torch.zeros(2, device=device)  # decayed sums
        self._weight = torch.zeros((), device=device)  # sum of the decay factors

    def __call__(self, made: Tensor, mel: Tensor, judged: Tensor, losses: dict[str, Tensor]) -> Tensor:
        (by_mel,) = torch.autograd.grad(mel, made)
        (by_judges,) = torch.autograd.grad(judged, made)
        norms = torch.stack((by_mel.norm(), by_judges.norm()))
        self._norms.mul_(_NORM_DECAY).add_(norms)
        self._weight.mul_(_NORM_DECAY).add_(1.0)
        mean_mel, mean_judged = (self._norms / self._weight).unbind()
        losses["mel_gradient"] = mean_mel
        return by_mel + by_judges * (self.share * mean_mel / mean_judged.clamp(min=1e-12))


class Average:
    """An exponential moving average of named parameters."""

    def __init__(self, parameters: dict[str, nn.Parameter], device: torch.device) -> None:
        self.names = list(parameters)
        self._parameters = [one.detach() for one in parameters.values()]  # the same memory
        self._average = [one.clone() for one in self._parameters]
        self._decay = torch.zeros((), device=device)

    def set_decay(self, step: int) -> None:
        """Averages over fewer steps at first, so that early weights are forgotten sooner."""
        self._decay.fill_(min(_MAX_DECAY, (1 + step) / (10 + step)))

    @torch.no_grad()
    def follow(self) -> None:
        torch._foreach_mul_(self._average, self._decay)
        torch._foreach_add_(self._average, torch._foreach_mul(self._parameters, 1 - self._decay))

    def set(self, name: str, value: Tensor) -> None:
        self._average[self.names.index(name)].copy_(value)

    def load(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.set(name, value)

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self._average, strict=True))
