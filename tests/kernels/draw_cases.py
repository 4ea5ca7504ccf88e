"""Sampling settings of every kind and logits to draw from, for the tests of both samplers."""

import pytest
import torch
from torch import Tensor

from oscine.types import DrawParams

PARAMS = {
    "default": DrawParams(),
    "greedy": DrawParams(greedy=True),
    "unlimited": DrawParams(top_k=0, temperature=1.0),
    "top-k 1": DrawParams(top_k=1),
    "top-k of everything": DrawParams(top_k=10**6, temperature=1.7),
    "top-p": DrawParams(top_k=0, top_p=0.8),
    "both": DrawParams(top_k=20, top_p=0.5, temperature=0.6),
    "a tiny top-p": DrawParams(top_k=0, top_p=1e-9),
    "cold": DrawParams(temperature=0.01),
}
MIXED = list(PARAMS.values())


@pytest.fixture(autouse=True)
def order_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel drops equals in the order of their ids; the reference needs a stable sort for that."""
    sort = torch.Tensor.sort

    def stable_sort(self: Tensor, dim: int = -1, **_: bool) -> tuple[Tensor, Tensor]:
        return sort(self, dim=dim, stable=True)

    monkeypatch.setattr(torch.Tensor, "sort", stable_sort)


def random_logits(device, rows: int, vocab: int, seed: int, *, ties: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator) * 3
    if ties:  # many equal values, also at the borders of top-k and top-p, and both zeros
        logits = logits.round() * torch.where(torch.rand(rows, vocab, generator=generator) < 0.5, 1.0, -1.0)
    return logits.to(device)
