"""One folder of compiled kernels for all tests, and for all processes that share a run."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    (shared / "emulated").mkdir(exist_ok=True)
    return shared / "emulated"
