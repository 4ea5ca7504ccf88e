"""The section about checks on a GPU tells how each run ended."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import RESULTS, Report
from benchmarks.report_checks import check_row
from oscine_bench.record import script_result

TILED = {
    "failures": {},
    "skipped": [],
    "wgmma as mma, 1 instructions": {"ok same bits": True, "share that differs": 0.0},
    "wgmma as mma, 24 instructions": {"ok same bits": True, "share that differs": 0.0},
    "tiled product talker out": {"ok 32": True, "ok 32 has the bits of few": True, "ok 64 has the bits of few": True},
    "exit": 0,
    "s": 12.0,
}


def outcome(section: dict[str, Any], name: str = "tiled") -> str:
    return check_row(f"cuda-{name}", script_result("x", ["-m", "benchmarks.cuda_chain"], {name: section}))[1]


def test_equal_bits_are_counted() -> None:
    assert outcome(TILED) == "3 of 3 checks hold; equal bits in 2 of 2 chains and 2 of 2 products"
    other = copy.deepcopy(TILED)
    other["tiled product talker out"]["ok 64 has the bits of few"] = False
    other["failures"] = {"tiled product talker out": "ok 64 has the bits of few of ..."}
    assert outcome(other) == (
        "2 of 3 checks hold; failed: tiled product talker out; equal bits in 2 of 2 chains and 1 of 2 products"
    )


def test_checks_that_did_not_run_are_told() -> None:
    assert outcome({**TILED, "skipped": ["sample"]}, "checks") == "3 of 3 checks hold; not run: sample and later ones"
    assert outcome({"exit": "timeout"}, "checks") == "0 of 0 checks hold; the process ended with timeout"


def test_counts_of_tests_are_shown() -> None:
    figures = {"passed": 312, "failed": 0, "skipped": 14, "failures": [], "exit": 0}
    made = script_result("gpu-tests", ["-m", "benchmarks.gpu_tests"], figures)
    row = check_row("gpu-tests", made)
    assert row[1] == "312 passed, 0 failed, 14 skipped" and made["commit"] in row[2]
    assert row[3] == "`python -m benchmarks.gpu_tests`"


def test_each_run_of_the_sanitizer_is_shown() -> None:
    result = json.loads((RESULTS / "sanitize.json").read_text())
    run = {"findings": 2, "launches": 600}
    result["figures"] |= {"racecheck, frames": run, "memcheck, frames": {**run, "findings": None}}
    shown = check_row("sanitize", result)[1]
    assert "memcheck: 0 findings in" in shown and "racecheck, frames: 2 findings in 600 launches" in shown
    assert "memcheck, frames: no summary" in shown and shown.endswith("planted error: found")


@pytest.mark.parametrize("broken", ["{", "[]", '{"figures": {}}'])
def test_an_unusable_check_is_named_and_the_others_are_shown(broken: str, tmp_path: Path) -> None:
    report = Report(tmp_path)
    (tmp_path / "gpu-tests.json").write_text(broken)
    (tmp_path / "sanitize.json").write_text((RESULTS / "sanitize.json").read_text())
    assert "## What was checked on a GPU" in report.benchmarks() and "compute-sanitizer" in report.benchmarks()
    assert [complaint.split()[0] for complaint in report.complaints] == ["gpu-tests"]


def test_recordings_that_differ_are_counted() -> None:
    result = json.loads((RESULTS / "same-recordings.json").read_text())
    assert "the demo voice, 64 callers: 128 of 128" in check_row("same-recordings", result)[1]
    result["figures"]["1b7"]["64"]["equal"] = 127
    assert "1.7B, 64 callers: 127 of 128" in check_row("same-recordings", result)[1]
