"""The worker finds its modules where its parent found them, regardless of the current folder, and may be spawned before
it is known what it builds."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

import oscine
from oscine.engine.remote import WORKER
from oscine.engine.remote.client import EngineClient
from oscine.errors import ConfigError
from oscine.process.child import Child
from tests.engine.recorder import WAIT_S, wait_until
from tests.engine.remote.fake_engine import FakeConfig, build_fake
from tests.engine.remote.helpers import CONFIG, gone, speak

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
    """The parent's sys.path or PYTHONPATH decides, even if another version is installed."""
    (tmp_path / "build_here.py").write_text(BUILD)
    (tmp_path / "oscine").symlink_to(PACKAGE)
    (tmp_path / "empty").mkdir()
    ours = f"built with {tmp_path / 'oscine' / '__init__.py'}"
    assert built(tmp_path / "empty", tmp_path).startswith(ours)
    assert built(tmp_path / "empty", python_path=tmp_path).startswith(ours)


def build_with_imports(module: str, progress):
    raise ConfigError(f"{module} is {'' if module in sys.modules else 'not '}imported")


@pytest.mark.parametrize("modules", [["colorsys"], ["no_such_module"]])
def test_a_worker_spawned_early_builds_what_it_is_given_and_is_replaced_when_it_dies(modules: list[str]) -> None:
    spawned = Child(WORKER, *modules)
    with EngineClient(functools.partial(build_fake, FakeConfig()), CONFIG, spawned=spawned) as engine:
        engine.wait_ready(WAIT_S)
        assert engine.health.pid == spawned.popen.pid
        assert speak(engine, "say 3").wait() == ["stop"]
        spawned.popen.kill()
        wait_until(lambda: engine.health.restarts == 1 and engine.health.state == "ready")
        assert engine.health.pid != spawned.popen.pid
        assert speak(engine, "say 3").wait() == ["stop"]


def test_a_worker_imports_what_it_is_told_while_it_waits() -> None:
    spawned = Child(WORKER, "colorsys")
    build = functools.partial(build_with_imports, "colorsys")
    with (
        EngineClient(build, CONFIG, spawned=spawned) as engine,
        pytest.raises(ConfigError, match="colorsys is imported"),
    ):
        engine.wait_ready(WAIT_S)


def test_a_worker_that_is_given_nothing_ends_when_it_is_closed() -> None:
    spawned = Child(WORKER)
    spawned.end()
    assert gone(spawned.popen.pid)
    spawned.end()
