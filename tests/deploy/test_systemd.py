"""The systemd unit: accepted by systemd, sandboxed, and stopped only after it had time to drain.
docs/deploy/systemd.md says what was run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oscine.config import ServerConfig
from oscine.serving.environment import variable_of
from oscine.serving.settings import Settings, load_settings, setting_fields
from tests.conftest import ROOT, require_program

pytestmark = pytest.mark.slow

UNIT = ROOT / "deploy" / "systemd" / "oscine.service"
TEXT = UNIT.read_text(encoding="utf-8")
MAX_EXPOSURE = 20  # tenths; systemd-analyze calls up to 2.0 "OK" and most services without a sandbox 9.6 "UNSAFE"


def analyze(*arguments: str | Path) -> str:
    command = [require_program("systemd-analyze", "systemd"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout + done.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """But for the program, which is not installed in /opt here."""
    unit = tmp_path / "oscine.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", TEXT, flags=re.MULTILINE))
    assert analyze("verify", unit) == ""


def test_the_sandbox_leaves_little_exposed() -> None:
    analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", UNIT)


def test_the_server_may_drain_before_it_is_killed() -> None:
    stop_s = int(re.findall(r"^TimeoutStopSec=(\d+)$", TEXT, re.MULTILINE)[0])
    assert stop_s >= ServerConfig().drain_s + 10
    assert "\nKillMode=mixed\n" in TEXT  # the workers live until the front end has drained


def test_the_settings_exist() -> None:
    known = {variable_of(path) for path, _, _ in setting_fields(Settings)}
    assert set(re.findall(r"OSCINE_SERVE_\w+", TEXT)) <= known
    load_settings(UNIT.with_name("oscine.toml"), {})
