"""The search for the highest sustained rate."""

import itertools
import math
from dataclasses import replace

import pytest

from oscine.errors import RequestError
from oscine_bench.load import RunLength
from oscine_bench.search import RateSearch, SearchLimits, Verdict, length_at, measured_requests
from oscine_bench.summary import MeasurementWindow, RequestOutcome, summarize
from oscine_bench.workload import arrivals
from tests.oscine_bench.test_summary import failed, succeeded


def row(*outcomes: RequestOutcome) -> dict:
    return summarize(outcomes, MeasurementWindow(0.0, 3.0))


def test_limits_name_every_violation() -> None:
    late = row(succeeded(0, 0.0, 3.0, (0.2, 0.5), (1.0, 2.0)))
    assert SearchLimits(p95_ms=100).violations(late) == ["underruns: worst 300.0 ms", "first audio p95: 200.0 ms"]
    assert SearchLimits(p95_ms=200, underrun_ms=301).violations(late) == []
    assert SearchLimits().violations(row(failed(0, "cut"))) == ["cut: 1"]
    assert SearchLimits().violations(row()) == ["no request was due during the measurement"]
    inaudible = {**row(succeeded(0, 0.0, 3.0, (0.2, 1.0), (0.3, 2.0))), "inaudible": 1}
    assert SearchLimits(p95_ms=200).violations(inaudible) == ["inaudible: 1"]


def test_responses_that_were_not_streamed_violate_an_underrun_limit() -> None:
    whole = row(succeeded(0, 0.0, 3.0, (0.2, 0.5)))
    (violation,) = SearchLimits(p95_ms=200).violations(whole)
    assert violation == "underruns: not applicable, the responses were not streamed"
    assert SearchLimits(p95_ms=200, underrun_ms=math.inf).violations(whole) == []


@pytest.mark.parametrize("options", [{"p95_ms": 0}, {"p95_ms": math.nan}, {"underrun_ms": -1}])
def test_impossible_limits_are_refused(options: dict) -> None:
    with pytest.raises(RequestError):
        SearchLimits(**options)


def search_up_to(limit: float, **options: float) -> tuple[float | None, list[float]]:
    """The result, and the rates that were tried, where rates up to `limit` hold."""
    search, tried, at_most = RateSearch(**options), [], math.inf
    while (rate := search.next_rate()) is not None:
        tried.append(rate)
        assert 1 <= search.max_steps <= at_most
        at_most = search.max_steps - 1
        search.add(rate, rate <= limit)
    assert at_most >= 0
    return search.low, tried


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.0, 99.5, 640.0])
@pytest.mark.parametrize("first", [1.0, 20.0])
def test_the_search_finds_the_highest_rate_that_holds(limit: float, first: float) -> None:
    best, tried = search_up_to(limit, first=first)
    assert best is not None and best <= limit
    assert any(limit < rate <= best * 1.05 for rate in tried)
    assert len(tried) <= 16


def test_the_search_stays_within_its_bounds() -> None:
    assert search_up_to(math.inf, max_rate=100.0) == (100.0, [1, 2, 4, 8, 16, 32, 64, 100])
    best, tried = search_up_to(0.0, first=1.0)
    assert best is None and min(tried) >= 0.05


def outcome(first_audio_s: float, phase: str = "measured") -> RequestOutcome:
    one = succeeded(0, 0.0, 3.0, (first_audio_s, 1.0), (first_audio_s + 0.5, 2.0))
    return replace(one, request=replace(one.request, phase=phase))


@pytest.mark.parametrize(("requests", "late"), [(19, 0), (20, 1), (39, 1), (40, 2)])
def test_a_verdict_is_final_with_the_first_response_that_no_other_can_make_up_for(requests: int, late: int) -> None:
    limits = SearchLimits(p95_ms=100)
    verdict = Verdict(limits, requests)
    assert not any(verdict.is_final(outcome(0.2)) for _ in range(late))
    assert not verdict.is_final(outcome(0.1)) and not verdict.is_final(outcome(0.2, "warmup"))
    assert verdict.is_final(outcome(0.2))
    # The row agrees, whatever the others are.
    slow, good = late + 1, requests - late - 1
    assert limits.violations(row(*[outcome(0.2)] * slow, *[outcome(0.1)] * good))
    assert not limits.violations(row(*[outcome(0.2)] * late, *[outcome(0.1)] * (good + 1)))


def test_one_failure_or_gap_is_final() -> None:
    gap = succeeded(0, 0.0, 3.0, (0.05, 0.5), (1.0, 2.0))
    for bad in (failed(0, "http_429"), gap, replace(outcome(0.05), audible_s=None)):
        assert Verdict(SearchLimits(p95_ms=100), 1000).is_final(bad)
    assert not Verdict(SearchLimits(p95_ms=100, underrun_ms=math.inf), 1000).is_final(gap)


@pytest.mark.parametrize(
    ("rate", "left_s", "may_shorten", "window_s"),
    [
        (10.0, 300.0, True, 30.0),
        (0.5, 300.0, True, 60.0),  # 30 requests
        (0.1, 300.0, True, 145.0),  # one stream whose responses have 10 s: 300 s of window do not fit
        (0.05, 260.0, True, 125.0),  # the next rate, when that broke a limit early
        (0.1, 300.0, False, 300.0),  # another rate has held
        (0.05, 200.0, True, 600.0),  # fewer than 5 requests would say nothing
        (1.0, math.inf, True, 30.0),
    ],
)
def test_a_low_rate_gets_a_long_window_or_half_of_the_time_left(
    rate: float, left_s: float, may_shorten: bool, window_s: float
) -> None:
    found = length_at(rate, RunLength(), left_s, may_shorten=may_shorten)
    assert found.duration_s == pytest.approx(window_s)


def test_a_number_of_requests_is_not_shortened() -> None:
    given = RunLength(requests=7, duration_s=600.0)
    assert length_at(0.1, given, 20.0, may_shorten=True) == given


def test_the_measured_requests_of_a_load_are_known_before_it() -> None:
    assert measured_requests(20.0, 0, RunLength(requests=7)) == 7
    length = RunLength(duration_s=3.0, warmup_s=1.0)
    due_s = list(itertools.takewhile(lambda at_s: at_s < 4.0, arrivals(20.0, seed=5)))
    assert measured_requests(20.0, 5, length) == sum(at_s >= 1.0 for at_s in due_s) > 30
