"""How far a figure may be off by the choice of texts: 95 % intervals, found by drawing the set again and again.

Texts are drawn whole, with all their takes: two takes of one text are no independent witnesses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Terms = tuple[float, float]  # of one text: what is counted, and what it is a share of
Values = npt.NDArray[np.float64]

RESAMPLES = 10_000
_BLOCK = 500  # that are in memory at once
_LOW, _HIGH = 0.025, 0.975
NEVER_SEEN = 3.0  # over the number of texts: the highest rate that stays unseen in one such set of twenty
_ALIKE = 1e-12


def interval(terms: Sequence[Terms]) -> tuple[float, float]:
    """Of the sum of counts over the sum of shares."""
    return _middle(np.concatenate([_quotients(draws, terms) for draws in _draws(len(terms))]))


def difference_interval(one: Sequence[Terms], other: Sequence[Terms]) -> tuple[float, float]:
    """Of the other's quotient less the one's. Paired: both lists hold the same texts in the same order, and a draw
    takes a text for both or for neither, so that what is hard for both does not count as a difference."""
    assert len(one) == len(other), (len(one), len(other))
    return _middle(np.concatenate([_quotients(draws, other) - _quotients(draws, one) for draws in _draws(len(one))]))


def widened(low: float, high: float, texts: int, step: float, least: float = 0.0) -> tuple[float, float]:
    """An interval of events that were never seen, or always, or that never differed: no draw of them can show that they
    might. `step`: what one event in every recording adds to the figure; 0 where it counts no events. The interval stays
    between `least` and 1."""
    if high - low > _ALIKE:
        return low, high
    slack = step * NEVER_SEEN / texts
    return max(low - slack, min(low, least)), min(high + slack, max(high, 1.0))


def sign_chance(one: Sequence[Terms], other: Sequence[Terms]) -> float:
    """The exact sign test, both ways: how likely it is that the texts which differ lean so much to one side, if neither
    side is worse."""
    changes = [b[0] - a[0] for a, b in zip(one, other, strict=True) if a[0] != b[0]]
    fewer = min(sum(change > 0 for change in changes), sum(change < 0 for change in changes))
    return min(1.0, 2 * sum(math.comb(len(changes), count) for count in range(fewer + 1)) / 2 ** len(changes))


def _draws(texts: int) -> Iterator[Values]:
    """[block, texts]: how often each text was drawn. The same for the same number of texts, always."""
    generator = np.random.default_rng(texts)
    for _ in range(RESAMPLES // _BLOCK):
        yield generator.multinomial(texts, np.full(texts, 1 / texts), size=_BLOCK).astype(np.float64)


def _quotients(draws: Values, terms: Sequence[Terms]) -> Values:
    counts, shares = np.asarray(terms, np.float64).T
    of = draws @ shares
    return np.divide(draws @ counts, of, out=np.full(len(of), np.nan), where=of > 0)


def _middle(values: Values) -> tuple[float, float]:
    """What is left of 95 % of all draws; those without any share (of a text or two) say nothing."""
    low, high = np.quantile(values[np.isfinite(values)], [_LOW, _HIGH])
    return float(low), float(high)
