"""The table of targets: verdicts follow from the figures."""

from benchmarks.report_checks import TARGETS, targets_section
from oscine_bench.record import script_result


def test_a_target_that_was_missed_says_where() -> None:
    frame = next(target for target in TARGETS if target.result == "frame")
    ticks_ms = {"1": 2.4, "8": 2.91, "32": 4.4, "128": 8.0}
    frames = {rows: {"tick_ms": tick_ms} for rows, tick_ms in ticks_ms.items()}
    row = frame.row({"1b7": {"cuda": {"frames": frames}}})
    assert row[1:] == ["2.5 / 2.9 / 4.4 / 7.5", "2.4 / 2.91 / 4.4 / 8", "missed: 8, 128"]


def test_of_a_rate_more_is_better() -> None:
    target = next(target for target in TARGETS if target.higher)
    loads = [
        {"load": {"kind": "closed", "value": callers}, "x_real_time": x}
        for callers, x in ((1, 28.0), (8, 189.0), (32, 999.0), (128, 1100.4))
    ]
    assert target.row({"loads": loads})[2:] == ["28 / 189 / 999 / 1100", "missed: 8"]


def test_only_results_of_the_machine_of_the_targets_count() -> None:
    figures = {"prefilled_ms": {"128": 100.0}}
    for machine, shown in (("NVIDIA H200", True), ("2 cores, x86_64", False)):
        result = script_result("admission-gpu-rows400-1b7", ["x"], figures) | {"machine": machine}
        found = {"admission-gpu-rows400-1b7": result}
        assert ("| 0.3 | 0.1 | met |" in targets_section(found.get)) == shown
