"""One command for all GPU benchmarks: its steps name options that exist, and a step that fails stops no other."""

import importlib
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import on_gpu
from benchmarks.on_gpu import STEPS, Step, listed, run
from tests.conftest import ROOT


class Parsed(Exception):  # noqa: N818
    """Ends a benchmark once it has read its arguments."""


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_benchmark_of_a_step_takes_its_arguments(
    step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in this process: each of its own would import torch again."""
    parse = ArgumentParser.parse_args

    def parse_and_stop(parser: ArgumentParser, words: Sequence[str] | None = None) -> None:
        raise Parsed(parse(parser, words))

    monkeypatch.setattr(ArgumentParser, "parse_args", parse_and_stop)
    _, _, module, *words = step.command(tmp_path / "out", tmp_path / "scratch")
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(Parsed):
        importlib.import_module(module).main()


def test_every_step_has_a_name_of_its_own_and_fits_into_a_command_of_ten_minutes() -> None:
    assert set(Counter(step.name for step in STEPS).values()) == {1}
    assert all(0 < step.takes_s < step.limit_s < 600 for step in STEPS)


def test_the_list_names_each_step_with_its_command_and_no_folder() -> None:
    lines = listed(STEPS).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [step.name for step in STEPS]
    assert all("python -m benchmarks." in line and "{" not in line and "--out" not in line for line in lines[1:])


def test_a_step_of_another_environment_runs_in_this_one_where_that_is_missing(tmp_path: Path) -> None:
    for python, expected in (("", sys.executable), ("no/such/python", sys.executable), ("Makefile", ROOT / "Makefile")):
        step = Step("triton", 1, 2, "benchmarks.triton_overhead", "--out {out}", python)
        words = [str(expected), "-m", "benchmarks.triton_overhead", "--out", str(tmp_path)]
        assert step.command(tmp_path, tmp_path) == words


def test_a_step_ends_done_failed_or_cut_off(tmp_path: Path) -> None:
    def ended(code: str, limit_s: float = 60.0) -> str:
        return run([sys.executable, "-c", code], tmp_path / "log.txt", limit_s)

    assert ended("print('fine')") == "done" and (tmp_path / "log.txt").read_text() == "fine\n"
    assert ended("raise SystemExit(3)") == "failed with status 3"
    assert ended("import time; time.sleep(600)", limit_s=0.5) == "cut off after 0 s"


def test_a_step_that_fails_stops_no_other_and_the_last_lines_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = (Step("first", 1, 60, "nonsense", "--out {out}"), Step("second", 1, 60, "platform", ""))
    monkeypatch.setattr(on_gpu, "STEPS", steps)
    out = tmp_path / "results"
    monkeypatch.setattr(sys, "argv", ["on_gpu", "--out", str(out), "--scratch", str(tmp_path / "scratch")])
    with pytest.raises(SystemExit) as ended:
        on_gpu.main()
    assert ended.value.code == 1
    assert "first              failed with status 1\nsecond             done" in capsys.readouterr().out
    assert (out / "logs" / "second.txt").read_text()

    monkeypatch.setattr(sys, "argv", [*sys.argv, "--seconds", "0"])
    with pytest.raises(SystemExit):
        on_gpu.main()
    assert "second             left out: it takes about 1 s, and 0 s are left" in capsys.readouterr().out
