"""Spawns worker processes. Imports only the standard library: a server spawns its first worker before it has read its
settings, so that the worker imports torch meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# The parent's sys.path is set before anything else is imported: the worker runs the same package, and no file in the
# current folder takes the place of a library.
_MAIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from oscine.engine.remote.worker import main
main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
"""

_END_S = 5.0


@dataclass(frozen=True, slots=True)
class SpawnedWorker:
    """A worker that waits for its build function, and the connection to it."""

    popen: subprocess.Popen[bytes]
    connection: socket.socket

    def close(self) -> None:
        """Ends it at once, if it has not ended."""
        self.connection.close()
        self.popen.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
            self.popen.wait(_END_S)


def spawn_worker(environment: Mapping[str, str], imports: Sequence[str] = ()) -> SpawnedWorker:
    """The worker imports the modules `imports` while it waits. The thread that spawns it must outlive it: the kernel
    kills it when that thread ends. Raises OSError."""
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as on_error, theirs:
        on_error.callback(ours.close)
        arguments = (json.dumps([*map(str, sys.path)]), str(os.getpid()), str(theirs.fileno()), *imports)
        popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _MAIN, *arguments],
            stdin=subprocess.DEVNULL,
            env=dict(environment),
            pass_fds=[theirs.fileno()],
        )
        on_error.pop_all()
    return SpawnedWorker(popen, ours)
