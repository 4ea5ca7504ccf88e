"""The guide to API keys runs when its commands are pasted, and says what happens."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from tests.docs.live_server import ROOT, environment
from tests.server.scripted_engine import CARD, ScriptedEngine
from tests.server.serving import eventually, serving

BLOCKS = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/guides/keys.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    program = tmp_path / "bin" / "oscine"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m oscine "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    path = f"{program.parent}:{os.environ['PATH']}"

    def run(commands: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-ec", commands]
        return subprocess.run(
            command, cwd=tmp_path, env={**environment(), "PATH": path}, capture_output=True, text=True, timeout=600
        )

    return run


def test_the_commands_of_the_guide_make_use_and_revoke_a_key(
    run: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    add, serve, use, revoke = BLOCKS
    done = run(add)
    assert done.returncode == 0 and "prometheus" in done.stdout, done.stderr
    assert serve == "oscine serve --model demo --keys-file keys.json &\n"
    engine = ScriptedEngine()
    with serving(build_app(engine, CARD, ServerConfig(keys_file=str(tmp_path / "keys.json")))) as url:
        use = use.replace("http://127.0.0.1:8000", url)
        done = run(use)
        assert done.returncode == 0, done.stderr
        assert '"characters":12' in done.stdout and '"key":"prometheus"' in done.stdout
        assert (tmp_path / "hello.mp3").stat().st_size > 0
        assert run(revoke).returncode == 0
        eventually(lambda: "401" in run(use).stderr)
    engine.stop()
