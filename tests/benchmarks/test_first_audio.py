"""benchmarks/first_audio.py: the stages of the time to the first audio."""

from pathlib import Path

import pytest
import torch

from benchmarks.first_audio import arguments, measure_all, stages_ms
from benchmarks.report import Report
from benchmarks.report_sections import STAGES
from benchmarks.runner_clock_points import DeviceClock, clock
from oscine_bench.record import script_result, write_result


def point(**changed: float) -> dict[str, float]:
    """One second for each stage."""
    return {"sent": 0.0, **{end: float(at) for at, end in enumerate(STAGES.values(), start=1)}, **changed}


def test_the_stages_of_a_request_add_up_to_its_first_audio() -> None:
    figures = stages_ms({1: point(), 2: point(first_byte=20.0)})
    assert figures["first_audio_ms"]["mean"] == sum(stage["mean"] for stage in figures["stages_ms"].values()) == 18000.0
    assert figures["stages_ms"]["HTTP out"]["most"] == 5000.0


def test_a_request_that_is_admitted_before_submit_returns_did_not_wait() -> None:
    admit_s = point()["admit_begun"]
    stages = stages_ms({1: point(prompt_built=admit_s + 0.5)})["stages_ms"]
    assert stages["wait for the tick"]["mean"] == 0.0 and stages["admit"]["mean"] == 1000.0


def test_a_device_that_begins_during_the_launch_did_not_wait() -> None:
    stages = stages_ms({1: point(device_begun=point()["launched"] - 0.5)})["stages_ms"]
    assert stages["wait for the device"]["mean"] == 0.0 and stages["prompt, first frame, copy"]["mean"] == 2000.0


def test_requests_with_a_missing_clock_point_are_left_out() -> None:
    incomplete = point()
    del incomplete["framed"]
    assert stages_ms({1: point(), 2: incomplete})["requests"] == 1


def test_a_result_has_a_table_and_a_chart_for_each_load(tmp_path: Path) -> None:
    figures = {"loads": {callers: stages_ms({1: point()}) for callers in ("1", "32")}}
    result = script_result("first-audio-gpu-1b7", ["-m", "benchmarks.first_audio"], figures)
    write_result(tmp_path / "first-audio-gpu-1b7.json", result)
    report = Report(tmp_path)
    page, images = report.benchmarks(), report.images()
    assert "### 1.7B" in page and "| prompt, first frame, copy | 1000.00 / 1000.00 | 1000.00 / 1000.00 |" in page
    assert [*images] == ["first-audio-gpu-1b7-1.svg", "first-audio-gpu-1b7-32.svg"]
    assert all(f"images/{name}" in page and "prompt, first frame, copy: 1000" in svg for name, svg in images.items())
    assert report.complaints == []


@pytest.mark.slow
def test_every_request_to_the_demo_voice_has_all_clock_points() -> None:
    # One caller: a slow machine may refuse a second one.
    words = "--model demo --device cpu --callers 1 --slots 1 --requests 2 --warmup 0 --frames 2"
    row = measure_all(arguments(words.split()), lambda said: None)["loads"]["1"]
    assert row["succeeded"] == row["requests"] == 2 and row["failures"] == {}
    assert row["stages_ms"]["prompt, first frame, copy"]["least"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_times_of_the_device_lie_between_those_of_the_host() -> None:
    device = torch.device("cuda")
    device_clock, work = DeviceClock(device), torch.ones(2048, 2048, device=device)
    for _ in range(3):
        before_s = clock()
        marks = [device_clock.record()]
        work = work @ work.T * 1e-6
        marks.append(device_clock.record())
        device_clock.wait(marks[-1])
        times_s = [device_clock.at_s(mark) for mark in marks]
        assert before_s - 1e-3 < times_s[0] < times_s[1] < clock() + 1e-3
