"""The operating system's side of an engine process: start it, end it, leave nothing of it behind."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from oscine.engine.remote.transport import Transport
from oscine.engine.remote.worker import Build
from oscine.types import ConfigError, EngineError

KILL_S = 30.0  # a process that hangs in a driver may not even die

# Before anything of ours is imported, modules are looked for where the parent found them: nothing in the current folder
# takes the place of a library, and the child runs this very package.
_START = """
import pickle, runpy, sys
with open(sys.argv[1] + "/build", "rb") as build:
    sys.path[:], _ = pickle.load(build)
runpy.run_module("oscine.engine.remote.worker", run_name="__main__", alter_sys=True)
"""


class WorkerProcess:
    """The engine process with its channel. Lives and dies on the supervisor's thread: the kernel kills a process when
    the thread that started it ends."""

    def __init__(self, pickled: bytes, environment: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as undo:
            # For this user only. A socket's path has about a hundred characters at most.
            parent = None if len(tempfile.gettempdir()) < 70 else "/tmp"
            self._folder = Path(tempfile.mkdtemp(prefix="oscine-", dir=parent))
            undo.callback(self.remove_files)
            (self._folder / "build").write_bytes(pickled)
            self._lifeline, theirs = socket.socketpair()
            undo.callback(self._lifeline.close)
            with theirs:
                self.channel = Transport(f"ipc://{self._folder}/line", bind=True, lifeline=self._lifeline)
                undo.callback(self.channel.close)
                command = [sys.executable, "-P", "-c", _START, str(self._folder), str(os.getpid())]
                self.popen = subprocess.Popen(command, stdin=theirs.fileno(), env={**os.environ, **environment})
            self._close = undo.pop_all()

    def remove_files(self) -> None:
        """Once connected, nobody needs them: gone early, they cannot be left behind."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        return self.popen.returncode is not None

    def end(self, terminate_s: float) -> None:
        """Terminates (with 0: not even that), then kills."""
        if self.popen.poll() is None and terminate_s > 0:
            self.popen.terminate()
            self.wait(terminate_s)
        if self.popen.poll() is None:
            self.popen.kill()
            if not self.wait(KILL_S):
                raise EngineError(f"the engine process {self.popen.pid} cannot be killed; a driver must be holding it")

    def close(self) -> None:
        self._close.close()

    def describe_exit(self) -> str:
        status = self.popen.returncode
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                return f"the engine process was killed by {signal.Signals(-status).name}"
        return f"the engine process ended with status {status}"


def pickled_build(build: Build) -> bytes:
    """What `WorkerProcess` needs to call `build` on the other side; refuses at once what could not arrive."""
    function: object = build
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__module__", None) == "__main__":
        raise ConfigError(
            "the engine's build function must be in a module that another process can import, not a script"
        )
    try:
        return pickle.dumps((sys.path, pickle.dumps(build)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the engine's build function cannot be given to another process: {error}") from None
