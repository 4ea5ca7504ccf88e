"""Computes 95 % intervals by bootstrap over texts. A text is drawn with all its takes, which are not independent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Ratio = tuple[float, float]  # numerator and denominator, such as errors and words of one text
Values = npt.NDArray[np.float64]

RESAMPLES = 10_000
_BLOCK = 500  # resamples held in memory at once
_QUANTILES = (0.025, 0.975)
UNSEEN = 3.0  # rule of three: an event unseen in n texts has a rate of at most 3 / n, at 95 % confidence
_MIN_WIDTH = 1e-12


def add(ratios: Iterable[Ratio]) -> Ratio:
    """Sums the numerators and the denominators."""
    numerators, denominators = zip(*ratios, strict=True)
    return sum(numerators), sum(denominators)


def interval(ratios: Sequence[Ratio]) -> tuple[float, float]:
    """Returns the interval of the sum of numerators over the sum of denominators."""
    return _interval(np.concatenate([_quotients(draws, ratios) for draws in _draws(len(ratios))]))


def difference_interval(first: Sequence[Ratio], second: Sequence[Ratio]) -> tuple[float, float]:
    """Returns the interval of the second quotient minus the first. Both lists hold the same texts in the same order,
    and a text is drawn for both, so texts that are hard for both do not widen the interval."""
    assert len(first) == len(second), (len(first), len(second))
    differences = [_quotients(draws, second) - _quotients(draws, first) for draws in _draws(len(first))]
    return _interval(np.concatenate(differences))


def widened(low: float, high: float, texts: int, step: float, lowest: float = 0.0) -> tuple[float, float]:
    """Applies the rule of three to events that occurred never, always or equally often, where resampling shows no
    spread. `step`: what one event per recording adds to the figure, 0 if it counts no events. The result stays between
    `lowest` and 1."""
    if high - low > _MIN_WIDTH:
        return low, high
    slack = step * UNSEEN / texts
    return max(low - slack, min(low, lowest)), min(high + slack, max(high, 1.0))


def sign_test(first: Sequence[Ratio], second: Sequence[Ratio]) -> float:
    """Returns the exact two-sided p-value: the chance of so uneven a split among texts that differ, if neither side is
    worse."""
    changes = [b[0] - a[0] for a, b in zip(first, second, strict=True) if a[0] != b[0]]
    fewer = min(sum(change > 0 for change in changes), sum(change < 0 for change in changes))
    return min(1.0, 2 * sum(math.comb(len(changes), count) for count in range(fewer + 1)) / 2 ** len(changes))


def _draws(texts: int) -> Iterator[Values]:
    """Returns [block, texts]: how often each text was drawn. The seed is the number of texts, so results are
    reproducible."""
    generator = np.random.default_rng(texts)
    for _ in range(RESAMPLES // _BLOCK):
        yield generator.multinomial(texts, np.full(texts, 1 / texts), size=_BLOCK).astype(np.float64)


def _quotients(draws: Values, ratios: Sequence[Ratio]) -> Values:
    numerators, denominators = np.asarray(ratios, np.float64).T
    of = draws @ denominators
    return np.divide(draws @ numerators, of, out=np.full(len(of), np.nan), where=of > 0)


def _interval(values: Values) -> tuple[float, float]:
    low, high = np.quantile(values[np.isfinite(values)], _QUANTILES)
    return float(low), float(high)
