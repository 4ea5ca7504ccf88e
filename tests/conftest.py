"""Session fixtures: tiny checkpoints with random weights, and the official package that judges us on them.

Everything slow is written once below .cache/, under a name that changes with the code and arguments that made it.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from random_checkpoint import write_checkpoint
from tests.oracle.client import Official
from tests.oracle.vocabulary import cached_vocabulary

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"

# checkpoints(size, kind, **options of write_checkpoint) -> folder
CheckpointMaker = Callable[..., Path]


def require_environment(name: str, what: str) -> Path:
    """The folder .venv-NAME, which `make NAME` makes. Without it a test is skipped, but never silently where it is
    asked for (OSCINE_NAME=required)."""
    folder = ROOT / f".venv-{name}"
    if not (folder / f"{name}-stamp").exists():  # written last: the environment is whole
        message = f"{what} not installed in {folder.name}; run `make {name}`"
        if os.environ.get("CI") or os.environ.get(f"OSCINE_{name.upper()}") == "required":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return folder


def require_oracle() -> Path:
    return require_environment("oracle", "the official package is")


def cached_checkpoint(bpe: Path | None, size: str, kind: str, **options: Any) -> Path:
    files = ("checkpoint_shapes.py", "random_checkpoint.py")
    maker = b"".join((ROOT / "tools" / name).read_bytes() for name in files)
    arguments = repr((bpe and bpe.name, size, kind, sorted(options.items())))
    folder = CACHE / "checkpoints" / f"{size}-{kind}-{hashlib.sha256(maker + arguments.encode()).hexdigest()[:16]}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = write_checkpoint(Path(scratch) / "fresh", size=size, kind=kind, bpe=bpe, **options)
            try:
                os.replace(fresh, folder)  # a run that is cut short leaves no half checkpoint behind
            except OSError:
                assert folder.exists()  # another run was faster
    return folder


@pytest.fixture(scope="session")
def vocabulary() -> Path:
    """Folder with Qwen's true vocab.json and merges.txt."""
    maker = (ROOT / "tests" / "oracle" / "vocabulary.py").read_bytes()
    folder = CACHE / f"vocabulary-{hashlib.sha256(maker).hexdigest()[:16]}"
    if folder.exists():
        return folder
    (site_packages,) = require_oracle().glob("lib/python3*/site-packages")
    return cached_vocabulary(site_packages, folder)


@pytest.fixture(scope="session")
def checkpoints(vocabulary: Path) -> CheckpointMaker:
    """Tiny checkpoints with the true vocabulary: checkpoints("1b7", "base", seed=3)."""

    def checkpoint(size: str, kind: str, **options: Any) -> Path:
        return cached_checkpoint(vocabulary, size, kind, **options)

    return checkpoint


@pytest.fixture(scope="session")
def small_checkpoints() -> CheckpointMaker:
    """Tiny checkpoints with a small vocabulary: quick to write and read, and no oracle needed."""

    def checkpoint(size: str, kind: str, **options: Any) -> Path:
        return cached_checkpoint(None, size, kind, **options)

    return checkpoint


@pytest.fixture(scope="session")
def official() -> Iterator[Official]:
    """The official package in its own process, started by the first call."""
    with Official(require_oracle() / "bin" / "python") as process:
        yield process
