"""Finds a Triton server on this machine and starts it with a repository: NVIDIA's own, or the one that the package
nvidia-pytriton carries."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from oscine.errors import ConfigError

_HOW_TO_GET_ONE = (
    "no Triton server was found: run this in NVIDIA's container nvcr.io/nvidia/tritonserver, put `tritonserver` on the "
    "PATH, or `pip install nvidia-pytriton`, which carries one"
)
# Of each model. A request of one model to another keeps a thread until it is answered, and a response needs one too:
# 32 streams of `oscine_speech` would use up Triton's default of 32.
_BACKEND_THREADS = "--backend-config=python,thread-pool-size=256"


@dataclass(frozen=True, slots=True)
class Addresses:
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002


def model_options(repository: Path, models: Sequence[str]) -> list[str]:
    """What any Triton server needs to serve these models."""
    folder = f"--model-repository={repository.resolve()}"
    return [folder, "--model-control-mode=explicit", *(f"--load-model={name}" for name in models), _BACKEND_THREADS]


@contextlib.contextmanager
def server_command(
    repository: Path, models: Sequence[str], addresses: Addresses, extra: Sequence[str] = ()
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command that serves these models, and its environment. Models can be unloaded and loaded again while it
    runs. Raises ConfigError if there is no server."""
    arguments = [
        *model_options(repository, models),
        *(f"--{kind}-address={addresses.host}" for kind in ("http", "grpc", "metrics")),
        f"--http-port={addresses.http_port}",
        f"--grpc-port={addresses.grpc_port}",
        f"--metrics-port={addresses.metrics_port}",
        *extra,
    ]
    if found := shutil.which("tritonserver"):
        yield [found, *arguments], _environment()
        return
    package = pytriton_folder()
    if package is None:
        raise ConfigError(_HOW_TO_GET_ONE)
    server = package / "tritonserver"
    with tempfile.TemporaryDirectory(prefix="oscine-triton-") as backends:
        _link_python_backend(server, Path(backends) / "python")
        command = [str(server / "bin" / "tritonserver"), f"--backend-directory={backends}", *arguments]
        yield command, _environment(package.parent / "nvidia_pytriton.libs")


def run_server(repository: Path, models: Sequence[str], addresses: Addresses, extra: Sequence[str] = ()) -> int:
    """Runs the server until it ends. Returns its exit status."""
    with server_command(repository, models, addresses, extra) as (command, environment):
        server = subprocess.Popen(command, env=environment)
        # The server finishes running streams after a signal. It gets a terminal's interrupt without us.
        signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return server.wait()


def pytriton_folder() -> Path | None:
    spec = importlib.util.find_spec("pytriton")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def _link_python_backend(server: Path, folder: Path) -> None:
    """The package keeps the backend apart from its processes' program, of which there is one per version of Python."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        raise ConfigError(f"nvidia-pytriton has no Python backend for Python {version}; use another Python")
    folder.mkdir()
    for file in (*(server / "backends" / "python").iterdir(), stub):
        (folder / file.name).symlink_to(file)


def _environment(*libraries: Path) -> dict[str, str]:
    """Models run in this Python: the server finds it as `python3`, and its library, which need not be a system's."""
    environment = dict(os.environ)
    folders = [*map(str, libraries), sysconfig.get_config_var("LIBDIR") or ""]
    environment["PATH"] = _joined(str(Path(sys.executable).parent), environment.get("PATH"))
    environment["LD_LIBRARY_PATH"] = _joined(*folders, environment.get("LD_LIBRARY_PATH"))
    return environment


def _joined(*folders: str | None) -> str:
    return os.pathsep.join(folder for folder in folders if folder)
