"""`oscine doctor`: a verdict on a checkpoint, with the reason if it does not work."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oscine.commands.main import app
from tests.conftest import CheckpointMaker, require_oracle

pytestmark = pytest.mark.slow


def doctor(*words: object) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["doctor", *map(str, words), "--device", "cpu"])


def test_the_demo_voice_works() -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    for line in ("versions", "device", "engine", "checkpoint", "speech", "official", "verdict"):
        assert f"\n{line}" in f"\n{result.output}"
    assert "x real time" in result.output and "this checkpoint works here" in result.output
    assert "not compared: the qwen-tts package is not installed" in result.output


@pytest.mark.parametrize("kind", ["custom_voice", "base", "voice_design"])
def test_codes_are_compared_with_the_official_package(small_checkpoints: CheckpointMaker, kind: str) -> None:
    python = require_oracle() / "bin" / "python"
    result = doctor(small_checkpoints("0b6", kind), "--official-python", python)
    assert "greedy codes equal the official package's (" in result.output, result.output
    assert result.exit_code == 0, result.output


def test_a_checkpoint_that_cannot_be_used_fails_with_the_reason(tmp_path: Path) -> None:
    result = doctor(tmp_path)
    assert result.exit_code == 1
    assert "checkpoint  FAILED: " in result.output and "does not work here" in result.output


def test_an_official_package_that_fails_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such module >&2\nexit 3\n")
    broken.chmod(0o755)
    result = doctor("demo", "--official-python", broken)
    assert result.exit_code == 1 and "the official package failed: no such module" in result.output
