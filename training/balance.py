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

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self._shares = {name: torch.zeros((), device=device) for name in names}
        self._norms = {name: _Mean(device) for name in ("mel", *names)}

    def set_share(self, name: str, share: float) -> None:
        self._shares[name].fill_(share)

    def __call__(self, made: Tensor, mel: Tensor, others: dict[str, Tensor], losses: dict[str, Tensor]) -> Tensor:
        (total,) = torch.autograd.grad(mel, made)
        losses["mel_gradient"] = mel_norm = self._norms["mel"].follow(total.norm())
        for name, loss in others.items():
            (gradient,) = torch.autograd.grad(loss, made)
            norm = self._norms[name].follow(gradient.norm())
            total = total + gradient * (self._shares[name] * mel_norm / norm.clamp(min=1e-12))
        return total


class _Mean:
    """An exponential moving mean, unbiased from the first value on."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), device=device)
        self._weight = torch.zeros((), device=device)

    def follow(self, value: Tensor) -> Tensor:
        self._sum.mul_(_NORM_DECAY).add_(value)
        self._weight.mul_(_NORM_DECAY).add_(1.0)
        return self._sum / self._weight


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
