"""The aligner's metrics, without one, the lag of the event loop, and the number of series of keys.
tests/server/test_app.py has those of requests."""

import asyncio
import re
import time

import pytest

from oscine.align.aligner import AlignerError
from oscine.config import ServerConfig
from oscine.server.http.api_keys import ApiKeys
from oscine.server.http.key_usage import Counted
from oscine.server.http.metrics import INTERVAL_S, AlignerMetrics, Metrics, watch_loop_lag
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import client_of, eventually


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(tuple)


def outcomes(metrics: Metrics) -> dict[str, float]:
    """Outcomes of alignments."""
    (family,) = metrics.aligner_jobs.collect()
    jobs = [one for one in family.samples if one.name.endswith("_total") and one.labels["job"] == "align"]
    return {one.labels["outcome"]: one.value for one in jobs}


def durations(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("oscine_aligner_seconds_count", {"job": "align"})


def test_a_server_without_an_aligner_shows_none_of_its_figures(metrics: Metrics) -> None:
    assert outcomes(metrics) == {} and durations(metrics) is None


def test_figures_of_the_aligner_are_zero_from_the_start(metrics: Metrics) -> None:
    AlignerMetrics(metrics)
    assert outcomes(metrics) == {"done": 0, "failed": 0, "busy": 0, "cancelled": 0} and durations(metrics) == 0


def test_a_job_that_is_done_is_counted_and_timed(metrics: Metrics) -> None:
    with AlignerMetrics(metrics).running("align"):
        pass
    assert outcomes(metrics) == {"done": 1, "failed": 0, "busy": 0, "cancelled": 0} and durations(metrics) == 1


@pytest.mark.parametrize(
    ("error", "outcome"), [(AlignerError("crashed"), "failed"), (asyncio.CancelledError(), "cancelled")]
)
def test_a_job_that_is_not_done_is_counted_once(metrics: Metrics, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)), AlignerMetrics(metrics).running("align"):
        raise error
    assert outcomes(metrics) == {"done": 0, "failed": 0, "busy": 0, "cancelled": 0, outcome: 1}
    assert durations(metrics) == 0


def test_a_job_that_is_refused_is_counted(metrics: Metrics) -> None:
    AlignerMetrics(metrics).refused("align")
    assert outcomes(metrics)["busy"] == 1


def test_a_callback_that_holds_the_loop_is_observed() -> None:
    lags: list[float] = []

    async def hold() -> None:
        watching = asyncio.create_task(watch_loop_lag(lags.append))
        await asyncio.sleep(0)
        time.sleep(0.2)
        while not lags:
            await asyncio.sleep(0.001)
        watching.cancel()

    asyncio.run(hold())
    assert lags[0] >= 0.2 - INTERVAL_S


def test_the_lag_is_a_metric(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:

        def count() -> float:
            found = re.search(r"^oscine_loop_lag_seconds_count (\S+)", client.get("/metrics").text, re.MULTILINE)
            return float(found[1]) if found else pytest.fail("no such metric")

        eventually(lambda: count() > 2)


def test_keys_beyond_the_first_thousand_share_a_series(metrics: Metrics) -> None:
    keys = ApiKeys(ServerConfig())
    metrics.watch_keys(keys)
    for number in range(1500):
        counted = Counted()
        keys.usage.count(f"key-{number}", keys.limits_of(""), {"requests": 1}, counted)
        keys.usage.settle(f"key-{number}", counted, 0)
    (family,) = [one for one in metrics.registry.collect() if one.name == "oscine_key_requests"]
    values = {sample.labels["key"]: sample.value for sample in family.samples}
    assert len(values) == 1001 and values["key-999"] == 1 and values["(others)"] == 500
