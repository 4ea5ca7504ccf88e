"""Sentences and tables of soaks and overloads say what went wrong."""

from __future__ import annotations

import copy

from benchmarks.report import BEGIN, END, RELIABILITY, Report
from benchmarks.report_pages import overload_table, soak_table
from benchmarks.report_table import RESULTS, load

SOAK, OVERLOAD = load(RESULTS / "soak-gpu.json"), load(RESULTS / "overload-gpu.json")


def test_a_soak_without_a_problem_reads_so() -> None:
    text = " ".join(soak_table(SOAK).split())
    assert "Unexpected results: 0." in text and "gave the same bytes" in text and "nothing was still held" in text


def test_a_soak_that_left_something_behind_reads_so() -> None:
    result = copy.deepcopy(SOAK)
    figures = result["figures"]
    figures["failures"] = {"http: cut": 3}
    figures["left"]["slots_active"] = 2.0
    figures["alone"]["after"]["0"] = "other"
    text = " ".join(soak_table(result).split())
    assert "Unexpected results: 3." in text and "OTHER bytes" in text and "'slots_active': 2.0" in text


def test_a_short_soak_is_shown_where_a_page_has_a_place_for_it() -> None:
    always = ("attacks", "soak-gpu", "overload-gpu", "soak-cpu", "forecast")
    marks = [f"{BEGIN.format(name=name)}\nold\n{END}" for name in always]
    report = Report()
    assert "11,168 clients" not in report.page(RELIABILITY, "\n".join(marks)) and report.complaints == []
    marks.append(f"{BEGIN.format(name='short-soak-gpu')}\nold\n{END}")
    filled = report.page(RELIABILITY, "\n".join(marks))
    assert "\nold\n" not in filled and "11,168 clients in 2 minutes" in filled


def test_every_client_of_a_soak_is_in_its_table() -> None:
    rows = [line.split(" | ") for line in soak_table(SOAK).splitlines() if line.startswith("| ")]
    assert sum(int(row[1].replace(",", "")) for row in rows[2:]) == SOAK["figures"]["requests"]


def test_gaps_and_refusals_of_an_overload_are_shown() -> None:
    result = copy.deepcopy(OVERLOAD)
    result["figures"]["overload"]["underruns"]["requests"] = 7
    burst = result["figures"]["bursts"][0]
    calm = copy.deepcopy(burst) | {"clients": 64, "results": {"ok": 64}, "tries": {"1": 64}}
    burst |= {"results": {"ok": 250, "http_429": 6}, "tries": {"1": 191, "2": 65}}
    burst["deficit_ms"]["most"] = 120.0
    result["figures"]["bursts"] = [calm, burst]
    text = overload_table(result)
    assert "| 7 | 0 | some, at most 120 ms |" in text and "| 0 | 0 | 6 |" in text
    assert "| 64 | 250, 65 of them after a 429 |" in text and "| 64 at once | 256 at once |" in text
