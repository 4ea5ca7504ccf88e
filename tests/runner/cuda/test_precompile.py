"""Kernels are compiled ahead, once, by a process of its own, and a launch finds them."""

import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oscine.model.config import read_config
from oscine.runner.backend import BackendOptions
from oscine.runner.memory_budget import plan_memory
from tests.conftest import CheckpointMaker

pytest.importorskip("triton")

from oscine.runner.cuda import precompile
from oscine.runner.cuda.precompile import Job, compile_job, compiling

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


@pytest.fixture
def job(small_checkpoints: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    config = read_config(small_checkpoints("1b7", "custom_voice"))
    budget = plan_memory(
        config, slots=1, positions_per_slot=64, positions_total=None, element_bytes=2, available_bytes=None
    )
    return Job(config, budget, BackendOptions((1,), codec=False), 90)


def test_a_launch_finds_what_was_compiled_ahead(small_checkpoints: CheckpointMaker, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.runner.cuda.compile_ahead", str(small_checkpoints("1b7", "custom_voice"))]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path]),
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert not result["failed"] and not result["missed"] and result["found"] > 10, result
    for kernel in ("linear._linear", "attention._talker", "sample._sample", "conv._conv"):
        assert any(name.startswith(kernel) for name in result["kernels"]), result["kernels"]
    assert {*result["in_tiles"]} == {False, True}, "few rows and long packs; the other packs"


WriteProcess = Callable[[str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteProcess:
    """Replaces what the process does; `pipe` leads to its parent."""

    def written(body: str) -> None:
        lines = ("from oscine.process.child import as_pipe, connection_to_parent",)
        lines += ("from oscine.process.child import read_message, write_message",)
        lines += ("def main(connection):", "    pipe = as_pipe(connection_to_parent(connection))", f"    {body}")
        (tmp_path / "compiles_something_else.py").write_text("\n".join(lines))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(precompile, "_MODULE", "compiles_something_else")

    return written


def test_progress_is_told_and_the_body_runs_meanwhile(job: Job, write: WriteProcess) -> None:
    write("[write_message(pipe, {'done': done, 'total': 2}) for done in (1, 2)]")
    steps: list[object] = []
    with compiling(job, lambda done, total: steps.append((done, total))):
        steps.append("body")
    assert steps == ["body", (1, 2), (2, 2)]


def test_the_process_gets_the_job(job: Job, tmp_path: Path, write: WriteProcess) -> None:
    got = tmp_path / "job"
    write(f"open({str(got)!r}, 'wb').write(read_message(pipe)[1])")
    with compiling(job, lambda done, total: None):
        pass
    assert pickle.loads(got.read_bytes()) == job


def test_a_process_that_fails_is_no_error(job: Job, write: WriteProcess, caplog: pytest.LogCaptureFixture) -> None:
    write("raise SystemExit(3)")
    with caplog.at_level(logging.WARNING), compiling(job, lambda done, total: None):
        pass
    assert "status 3" in caplog.text


def test_a_body_that_fails_ends_the_process(job: Job, write: WriteProcess) -> None:
    write("import time; time.sleep(1000)")
    with pytest.raises(LookupError), compiling(job, lambda done, total: None):
        raise LookupError


def test_nothing_is_compiled_twice_or_for_unknown_gpus(job: Job, write: WriteProcess) -> None:
    write("raise SystemExit(1)")
    job.stamp().parent.mkdir(parents=True, exist_ok=True)
    job.stamp().touch()
    steps: list[int] = []
    with compiling(job, lambda done, total: steps.append(done)):
        pass
    compile_job(job, lambda done, total: steps.append(done))
    other = Job(job.config, job.budget, job.options, 75)
    with compiling(other, lambda done, total: steps.append(done)):
        pass
    assert not steps


def test_other_sizes_or_gpus_have_other_stamps(job: Job) -> None:
    others = [
        Job(job.config, job.budget, job.options, 89),
        Job(job.config, job.budget, BackendOptions((1, 2), codec=False), 90),
    ]
    assert len({job.stamp(), *(other.stamp() for other in others)}) == 3
