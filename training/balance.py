"""Two helpers of codec.py with their state on the device, so that a CUDA graph can hold them: gradient balancing and a
moving average of weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_NORM_DECAY = 0.99
_MAX_DECAY = 0.999


class Balance:
    """Adds the gradients of other losses to that of the mel loss, each scaled to its share of the norm of the mel
    gradient. The scales of the losses then do not matter."""

    def __init__(self, others: int, device: torch.device) -> None:
        self._shares = torch.zeros(others, device=device)
        self._norms = torch.zeros(1 + others, device=device)  # decayed sums
        self._weight = torch.zeros((), device=device)  # sum of the decay factors

    def set_shares(self, *shares: float) -> None:
        for place, share in enumerate(shares):
            self._shares[place].fill_(share)

    def __call__(self, made: Tensor, mel: Tensor, others: Sequence[Tensor], losses: dict[str, Tensor]) -> Tensor:
        gradients = [torch.autograd.grad(loss, made)[0] for loss in (mel, *others)]
        self._norms.mul_(_NORM_DECAY).add_(torch.stack([one.norm() for one in gradients]))
        self._weight.mul_(_NORM_DECAY).add_(1.0)
        means = self._norms / self._weight
        losses["mel_gradient"] = means[0]
        scales = self._shares * means[0] / means[1:].clamp(min=1e-12)
        for gradient, scale in zip(gradients[1:], scales.unbind(), strict=True):
            gradients[0] = gradients[0] + gradient * scale
        return gradients[0]


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
