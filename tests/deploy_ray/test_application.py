"""The application that Ray builds, its arguments and the examples: the checks of check_application.py."""

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, require_environment

pytestmark = pytest.mark.slow


def test_the_checks_pass_in_rays_environment() -> None:
    python = require_environment("ray", "Ray is") / "bin" / "python"
    checks = Path(__file__).with_name("check_application.py")
    # Libraries of Ray warn; ours are tested with warnings as errors elsewhere.
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", str(checks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
