"""The comparison of forecasts with waits reads what the engine says."""

from __future__ import annotations

import pytest

from benchmarks.forecast import PHASES, TEXT, summary, told_wait_s
from benchmarks.report_pages import forecast_table
from oscine.config import EngineConfig
from oscine.engine.forecast import Forecast, Load
from oscine.engine.tick_cost import TickCost


def test_the_wait_is_read_from_the_engine_s_refusal() -> None:
    load = Load(2, 0, (100.0, 120.0), (), TickCost(0.04, 0.005))
    refused = Forecast(load, EngineConfig(slots=2, queue_wait_s=0.0)).refusal
    assert refused is not None and told_wait_s(str(refused)) == pytest.approx(5.0)
    assert told_wait_s("something else") is None


def test_bursts_and_later_requests_are_counted_apart() -> None:
    rows = [
        {
            "phase": phase,
            "load_before": 0.5,
            "load_average": 2.0,
            "admitted": 3,
            "forecasts": [
                {"at_s": 0.01, "forecast_s": 2.0 * factor, "wait_s": 2.0},
                {"at_s": 0.6, "forecast_s": 1.5, "wait_s": 1.5},
            ],
        }
        for phase in PHASES
        for factor in (2.0, 1.0, 1.0)
    ]
    phases = summary(rows)
    figures = phases[PHASES[1]]
    assert [figures[name]["p50"] for name in ("first_burst", "bursts", "later")] == [2.0, 1.0, 1.0]
    assert [figures[name]["count"] for name in ("first_burst", "bursts", "later")] == [1, 2, 3]
    default = {"load_before": 0.5, "characters": len(TEXT), "rounds": [{"spoken": 12, "done_s": 4.4}]}
    about = {
        "machine": "2 cores, x86_64",
        "date": "2026-11-19",
        "commit": "abc",
        "command": "c",
        "versions": {"python": "3"},
    }
    told = {"requests": 12, "default_wait": default, "phases": phases}
    page = forecast_table({**about, "figures": told})
    assert "at least 12 of each were spoken, within 4.4 s" in page and "98 characters" in page
    assert "other programs" not in page
    phases[PHASES[0]]["load_before"] = 16.0
    assert "| before (other programs ran) |" in forecast_table({**about, "figures": told})
