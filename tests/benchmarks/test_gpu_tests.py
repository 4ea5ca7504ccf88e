"""benchmarks/gpu_tests.py: what it makes of pytest's report."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.gpu_tests import command, outcomes

TESTS = """
import pytest
pytestmark = pytest.mark.gpu
@pytest.fixture
def untidy():
    yield
    raise RuntimeError("left behind")
@pytest.mark.parametrize("one", [1, 2])
def test_good(one): pass
def test_wrong(untidy): assert False
def test_untidy(untidy): pass
@pytest.mark.skip(reason="needs a Hopper GPU")
def test_other(): pass
"""
MODULES = {
    "test_some.py": TESTS,
    "test_none.py": "import pytest; pytest.skip('needs a CUDA device', allow_module_level=True)",
    "test_broken.py": "import nothing_of_that_name",
    "test_cpu.py": "def test_cpu(): assert False",
}


@pytest.mark.slow
def test_tests_are_counted_once_however_they_end(tmp_path: Path) -> None:
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    report = tmp_path / "junit.xml"
    ran = subprocess.run(command(report, 1, ["."]), cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    found = outcomes(report)
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 3, 2)
    assert found["failures"] == ["test_broken", "test_some.test_untidy", "test_some.test_wrong"]
    assert found["reasons_of_skips"] == {"needs a Hopper GPU": 1, "needs a CUDA device": 1}
