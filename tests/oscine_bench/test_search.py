"""The search for the highest sustained rate."""

import asyncio
import math
from collections.abc import Callable

import pytest

from oscine.errors import RequestError
from oscine_bench.search import SearchLimits, search_rate
from oscine_bench.summary import MeasurementWindow, RequestOutcome, summarize
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
    tried: list[float] = []

    async def holds(rate: float) -> bool:
        tried.append(rate)
        return rate <= limit

    search: Callable = search_rate
    return asyncio.run(search(holds, **options)), tried


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.0, 99.5, 640.0])
def test_the_search_finds_the_highest_rate_that_holds(limit: float) -> None:
    best, tried = search_up_to(limit)
    assert best is not None and best <= limit
    assert any(limit < rate <= best * 1.05 for rate in tried)
    assert len(tried) <= 16


def test_the_search_stays_within_its_bounds() -> None:
    assert search_up_to(math.inf, max_rate=100.0)[0] == 100.0
    best, tried = search_up_to(0.0, first=1.0)
    assert best is None and min(tried) >= 0.05
