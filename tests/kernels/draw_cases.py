"""Sampling settings of every kind and logits to draw from, for the tests of both samplers."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from oscine.request import DrawParams
from oscine.runner.sampling import DrawTable, draw, penalize
from tests.reference.generate import uniforms

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


class FirstCodeReference:
    """Code 0 of several frames, by runner/sampling.py. Of the ids from `codes` on, only `eos` can be drawn."""

    vocab, codes, eos = 96, 64, 70

    def __init__(self, params: list[DrawParams], penalty: float, hold: Sequence[int]) -> None:
        rows, cpu = len(params), torch.device("cpu")
        self.rows, self.table = rows, DrawTable.of(params, cpu)
        self.seeds = [row * 12345 + 6 for row in range(rows)]
        self.hold = torch.tensor(hold) != 0
        self.seen = torch.zeros(rows, self.vocab, dtype=torch.bool)
        self.penalty = torch.full((rows, 1), penalty)

    def logits(self, frame: int) -> Tensor:
        logits = random_logits(torch.device("cpu"), self.rows, self.vocab, seed=frame)
        logits[:, self.eos] += 6  # likely from the first frame on
        logits[:, self.codes] += 9  # not a code
        return logits

    def draw(self, logits: Tensor, frame: int) -> list[int]:
        logits = penalize(logits.float(), self.seen, self.penalty)
        eos_logits = logits[:, self.eos].clone()
        logits[:, self.codes :] = float("-inf")
        if frame >= 2:
            logits[:, self.eos] = eos_logits.masked_fill(self.hold, float("-inf"))
        codes = draw(logits, self.table, uniforms(self.seeds, frame, 1, torch.device("cpu"))[:, 0, 0])
        self.seen.scatter_(1, codes[:, None], True)
        return codes.tolist()

    def check_ends(self, codes: list[int], frame: int) -> None:
        """No speech has fewer than two frames, and none ends while it is held."""
        ended = torch.tensor(codes) == self.eos
        assert not ended.any() if frame < 2 else not ended[self.hold].any()
