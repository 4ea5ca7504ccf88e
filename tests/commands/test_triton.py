from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from oscine.commands.main import app
from oscine.serving.settings import load_settings


def test_the_command_writes_a_repository_and_prints_how_to_serve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    arguments = ["triton", "repository", "--model", "checkpoint", "--way", "fast", "--set", "engine.queue_limit=8"]
    done = CliRunner().invoke(app, [*arguments, "--voices-dir", "voices", "--slots", "4"])
    assert done.exit_code == 0, done.output
    assert (
        f"tritonserver --model-repository={tmp_path}/repository --model-control-mode=explicit --load-model=oscine "
        "--backend-config=python,thread-pool-size=256\n" in done.stdout
    )
    written = load_settings(tmp_path / "repository" / "oscine" / "1" / "settings.toml", {})
    # The server's processes have another working folder.
    assert written.model == str(tmp_path / "checkpoint") and written.server.voices_dir == str(tmp_path / "voices")
    assert (written.engine.queue_limit, written.engine.slots) == (8, 4)
