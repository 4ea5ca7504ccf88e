"""The documentation site builds without a warning: no dead link, no dead anchor, no page outside the navigation."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.live_server import ROOT

pytestmark = pytest.mark.slow


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="pip install --group docs")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "guides" / "live_text" / "index.html").exists()
