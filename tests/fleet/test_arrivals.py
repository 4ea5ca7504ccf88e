"""Arrivals have the rate, the lengths and the voices that were asked for, and are the same for the same seed."""

from collections import Counter

import pytest

from oscine.fleet.arrivals import Requests, burst, day, poisson


def test_arrivals_have_their_rate_and_repeat_with_their_seed() -> None:
    arrivals = list(poisson(lambda at_s: 50.0, 50.0, 20.0, Requests(), seed=1))
    assert len(arrivals) == pytest.approx(1000, rel=0.1)
    assert arrivals == list(poisson(lambda at_s: 50.0, 50.0, 20.0, Requests(), seed=1))


def test_a_day_and_a_burst_change_the_rate() -> None:
    rate = day(100.0, 24.0, swing=0.5)
    assert (rate(0.0), rate(12.0)) == pytest.approx((50.0, 150.0))
    assert [burst(1.0, 9.0, 2.0, 3.0)(at_s) for at_s in (1.9, 2.0, 3.0)] == [1.0, 9.0, 1.0]
    times = [at_s for at_s, _ in poisson(rate, 150.0, 24.0, Requests(), seed=2)]
    assert sum(6 < at_s < 18 for at_s in times) > 1.5 * sum(not 6 < at_s < 18 for at_s in times)


def test_lengths_have_their_mean_and_hot_voices_are_asked_for_most() -> None:
    speeches = [one for _, one in poisson(lambda at_s: 100.0, 100.0, 30.0, Requests(mean_s=4.0, hot=2.0), seed=3)]
    assert sum(one.frames for one in speeches) / len(speeches) / 12.5 == pytest.approx(4.0, rel=0.05)
    ((_, most),) = Counter(one.voice for one in speeches).most_common(1)
    assert most > 0.5 * len(speeches)
    equal = {one.frames for _, one in poisson(lambda at_s: 9.0, 9.0, 5.0, Requests(mean_s=4.0, spread=0.0), seed=4)}
    assert equal == {50}
