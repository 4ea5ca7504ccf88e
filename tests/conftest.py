"""Session fixtures: tiny checkpoints with random weights, and the official package as the oracle.

Slow results are cached in .cache/; their names contain a hash of the code and arguments that made them.
"""

import gc
import hashlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from oscine.process.resources import Owner, current_owner
from tests.oracle.client import Official
from tests.oracle.vocabulary import cached_vocabulary

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"

if not torch.cuda.is_available():  # before anything imports triton, which decides then
    os.environ["TRITON_INTERPRET"] = "1"

# A shell lets commands that it starts in the background ignore interrupts, and their children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# A worker runs a whole file. These take longest, most of them because of one fixture or one test, so they begin first.
LONG_FILES = (
    "tests/export/test_parts.py",
    "tests/kernels/cuda/test_chain.py",
    "tests/tritonserver/test_tritonserver.py",
    "tests/test_parity.py",
    "tests/deploy_ray/test_ray.py",
    "tests/test_install.py",
    "tests/commands/test_main.py",
    "tests/examples/test_examples.py",
    "tests/test_demo.py",
    "tests/commands/test_doctor.py",
    "tests/commands/test_serve_models.py",
    "tests/kernels/test_primitives.py",
    "tests/test_api.py",
    "tests/kernels/cuda/test_tiled.py",
    "tests/align/test_whisper.py",
    "tests/docs/test_readme.py",
    "tests/commands/test_say.py",
    "tests/commands/test_serve.py",
    "tests/runner/cuda/test_codec_stack.py",
    "tests/engine/test_build.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {ROOT / file: rank for rank, file in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_collection_finish() -> None:
    """Garbage collections skip the modules and tests of a whole run, which take half a second to look at."""
    gc.freeze()


_SERVER_LOGGERS = ("oscine", "oscine.audit", "uvicorn", "asyncio", "python_multipart")


def _restore_logs() -> Iterator[None]:
    """A test that configures the server's logs leaves them as they were for the next one in its process."""
    loggers = [logging.getLogger(name) for name in _SERVER_LOGGERS]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


_logs_of_test = pytest.fixture(autouse=True)(_restore_logs)


@pytest.fixture(autouse=True)
def _no_owner() -> None:
    """What a test holds counts for no key and no address of an earlier test."""
    current_owner.set(Owner())


_logs_of_module = pytest.fixture(autouse=True, scope="module")(_restore_logs)


# checkpoints(size, kind, **options of write_checkpoint) -> folder
CheckpointMaker = Callable[..., Path]


def require_environment(name: str, what: str) -> Path:
    """The folder .venv-NAME, which `make NAME` creates. Without it the test is skipped; with CI or OSCINE_NAME=required
    set, it fails."""
    folder = ROOT / f".venv-{name}"
    if not (folder / f"{name}-stamp").exists():  # written last: the environment is complete
        message = f"{what} not installed in {folder.name}; run `make {name}`"
        if os.environ.get("CI") or os.environ.get(f"OSCINE_{name.upper()}") == "required":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return folder


def require_client(name: str, needs: str) -> Path:
    """The folder of a client in .venv-clients that runs in a program of the system, not in our Python."""
    folder = require_environment("clients", "the clients are") / name
    if not (folder / "installed").exists():
        _program_is_missing(f"{needs} was not installed when `make clients` ran")
    return folder


def require_program(name: str, package: str) -> str:
    """The path of a program of the system. Without it the test is skipped; with OSCINE_PROGRAMS=required set, it
    fails."""
    # Debian has servers in /usr/sbin, which the PATH of a user may lack.
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if path is None:
        _program_is_missing(f"{name} is not installed; apt-get install {package}")
    return path


def _program_is_missing(message: str) -> NoReturn:
    if os.environ.get("OSCINE_PROGRAMS") == "required":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def require_oracle() -> Path:
    return require_environment("oracle", "the official package is")


def cached_checkpoint(bpe: Path | None, size: str, kind: str, **options: Any) -> Path:
    files = ("checkpoint_shapes.py", "random_checkpoint.py")
    maker = b"".join((ROOT / "tools" / name).read_bytes() for name in files)
    arguments = repr((bpe and bpe.name, size, kind, sorted(options.items())))
    folder = CACHE / "checkpoints" / f"{size}-{kind}-{hashlib.sha256(maker + arguments.encode()).hexdigest()[:16]}"
    if not folder.exists():
        from random_checkpoint import write_checkpoint  # torch, which the process that only distributes the tests lacks

        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = write_checkpoint(Path(scratch) / "fresh", size=size, kind=kind, bpe=bpe, **options)
            try:
                os.replace(fresh, folder)  # atomic: an interrupted run leaves no incomplete checkpoint
            except OSError:
                assert folder.exists()  # another run has written it
    return folder


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers, also those in processes of their own, keep uploaded voices there and not in the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def vocabulary() -> Path:
    """Folder with the real vocab.json and merges.txt of Qwen."""
    maker = (ROOT / "tests" / "oracle" / "vocabulary.py").read_bytes()
    folder = CACHE / f"vocabulary-{hashlib.sha256(maker).hexdigest()[:16]}"
    if folder.exists():
        return folder
    (site_packages,) = require_oracle().glob("lib/python3*/site-packages")
    return cached_vocabulary(site_packages, folder)


@pytest.fixture(scope="session")
def checkpoints(vocabulary: Path) -> CheckpointMaker:
    """Tiny checkpoints with the real vocabulary: checkpoints("1b7", "base", seed=3)."""

    def checkpoint(size: str, kind: str, **options: Any) -> Path:
        return cached_checkpoint(vocabulary, size, kind, **options)

    return checkpoint


@pytest.fixture(scope="session")
def small_checkpoints() -> CheckpointMaker:
    """Tiny checkpoints with a small vocabulary: fast to write and read, and they need no oracle."""

    def checkpoint(size: str, kind: str, **options: Any) -> Path:
        return cached_checkpoint(None, size, kind, **options)

    return checkpoint


@pytest.fixture(scope="session")
def official() -> Iterator[Official]:
    """The official package in its own process, started by the first call."""
    with Official(require_oracle() / "bin" / "python") as process:
        yield process
