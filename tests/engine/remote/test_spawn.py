"""The worker finds its modules where its parent found them, regardless of the current folder."""

import os
import subprocess
import sys
from pathlib import Path

import oscine

PACKAGE = Path(oscine.__file__).parent

BUILD = """
import queue
import oscine
from oscine.errors import ConfigError

def build(progress):
    raise ConfigError(f"built with {oscine.__file__} and {queue.__file__}")
"""

PARENT = """
import sys
sys.path[:0] = sys.argv[1:]
import build_here
from oscine.engine.remote.client import EngineClient
from oscine.errors import ConfigError
try:
    EngineClient(build_here.build).wait_ready(60)
except ConfigError as error:
    print(error)
"""


def built(folder: Path, *path: Path, python_path: Path | None = None) -> str:
    """The output of a build started by a parent in `folder` with `path` on its sys.path."""
    environment = {**os.environ, "PYTHONPATH": str(python_path)} if python_path else None
    command = [sys.executable, "-P", "-c", PARENT, *map(str, path)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_in_the_current_folder_never_shadows_a_library(tmp_path: Path) -> None:
    here, modules = tmp_path / "here", tmp_path / "modules"
    here.mkdir()
    modules.mkdir()
    (here / "queue.py").write_text("raise SystemExit('a stranger was run')")
    (modules / "build_here.py").write_text(BUILD)
    assert str(PACKAGE / "__init__.py") in built(here, modules)


def test_the_worker_runs_the_package_of_its_parent(tmp_path: Path) -> None:
    """Via the parent's sys.path or PYTHONPATH, even if another version is installed."""
    (tmp_path / "build_here.py").write_text(BUILD)
    (tmp_path / "oscine").symlink_to(PACKAGE)
    (tmp_path / "empty").mkdir()
    ours = f"built with {tmp_path / 'oscine' / '__init__.py'}"
    assert built(tmp_path / "empty", tmp_path).startswith(ours)
    assert built(tmp_path / "empty", python_path=tmp_path).startswith(ours)
