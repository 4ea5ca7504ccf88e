"""The costs of a machine are those that were measured, and grow with its work."""

import json
from pathlib import Path

import pytest

from oscine.errors import ConfigError
from oscine.fleet.machines import H200, machine_named

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def figures(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text())["figures"]


@pytest.mark.parametrize(("table", "figure"), [(H200.tick_ms, "tick_ms"), (H200.talker_ms, "talker_ms")])
def test_ticks_take_what_was_measured(table: tuple, figure: str) -> None:
    frames = figures("frame")["1b7"]["cuda"]["frames"]
    measured = {rows: frames[str(rows)][figure] for rows in (1, 8, 32, 128, 256)}
    assert {rows: ms for rows, ms in table if rows in measured} == pytest.approx(measured, rel=0.01)


def test_prefill_and_start_take_what_was_measured() -> None:
    admission = figures("admission-gpu-1b7")
    rows, ms = admission["prompt_rows"], admission["prefilled_ms"]
    assert H200.prefill_row_ms == pytest.approx((ms["128"] - ms["32"]) / 96 / rows, rel=0.05)
    assert H200.start_s == pytest.approx(figures("startup-gpu-1b7")["cached"]["server"], rel=0.01)


def test_a_tick_costs_more_with_more_streams_and_more_prompt_rows() -> None:
    ticks = [H200.tick_s(rows) for rows in (1, 2, 8, 20, 128, 200, 400)]
    assert ticks == sorted(ticks) and len(set(ticks)) == len(ticks)
    prompts = [H200.tick_s(64, [rows]) for rows in (20, 60, 120, 600, 1000)]
    assert H200.tick_s(64) < prompts[0] and prompts == sorted(prompts)


def test_an_unknown_machine_is_refused_with_those_that_are_known() -> None:
    assert machine_named("H200") is H200
    with pytest.raises(ConfigError, match="unknown machine 'h20'; did you mean 'h200'"):
        machine_named("h20")
