from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from oscine.deploy.tritonserver import launch
from oscine.deploy.tritonserver.launch import Addresses, run_server, server_command
from oscine.errors import ConfigError


def test_a_server_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "tritonserver"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncommand -v python3 > {tmp_path}/python\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    assert run_server(tmp_path / "repository", ["oscine", "other"], Addresses(grpc_port=9001)) == 7
    arguments = (tmp_path / "arguments").read_text()
    assert f"--model-repository={tmp_path}/repository" in arguments and "--grpc-port=9001" in arguments
    assert "--model-control-mode=explicit --load-model=oscine --load-model=other" in arguments
    # Models run in the Python that has Oscine.
    assert Path((tmp_path / "python").read_text().strip()).parent == Path(sys.executable).parent


def test_without_a_server_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(launch, "pytriton_folder", lambda: None)
    with (
        pytest.raises(ConfigError, match="pip install nvidia-pytriton"),
        server_command(tmp_path, ["oscine"], Addresses()),
    ):
        pass
