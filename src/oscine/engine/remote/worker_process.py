"""The worker as a process of the operating system: given its build function, ended, described."""

from __future__ import annotations

import contextlib
import functools
import pickle
import signal
import subprocess
import threading
from collections.abc import Callable

from oscine.engine.remote.messages import ToWorker, encode
from oscine.engine.remote.transport import Transport
from oscine.engine.remote.worker import Build
from oscine.errors import ConfigError, EngineError
from oscine.process.child import Child

KILL_S = 30.0  # a process that hangs in a driver may not even die
_LAST_MESSAGES_S = 5.0  # for messages of a process that has ended; only a process that it forked could delay their end


class WorkerProcess:
    """A spawned worker that builds an engine, and the transport to it."""

    def __init__(self, spawned: Child, build: bytes, on_message: Callable[[bytes], None]) -> None:
        self.popen = spawned.popen
        self.disconnected = threading.Event()
        with contextlib.ExitStack() as on_error:
            on_error.callback(spawned.end)
            self._transport = Transport(spawned.connection, on_message, self.disconnected.set)
            on_error.pop_all()
        self._transport.post(build)

    def send(self, message: ToWorker) -> None:
        self._transport.send(encode(message))

    def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        return self.popen.returncode is not None

    def end(self, terminate_s: float) -> None:
        """Terminates the process and kills it after `terminate_s`, or at once if that is 0. Receives its last
        messages, then disconnects."""
        try:
            if self.popen.poll() is None and terminate_s > 0:
                self.popen.terminate()
                self.wait(terminate_s)
            if self.popen.poll() is None:
                self.popen.kill()
                if not self.wait(KILL_S):
                    raise EngineError(f"the worker process {self.popen.pid} cannot be killed; a driver may hold it")
            self._transport.wait_disconnected(_LAST_MESSAGES_S)
        finally:
            self._transport.close()

    def describe_exit(self) -> str:
        status = self.popen.returncode
        if status is not None and status < 0:
            with contextlib.suppress(ValueError):
                return f"the worker process was killed by {signal.Signals(-status).name}"
        return f"the worker process ended with status {status}"


def pickle_build(build: Build) -> bytes:
    """Raises ConfigError for a function that a worker could not import."""
    function: object = build
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__module__", None) == "__main__":
        raise ConfigError("the build function must be in a module that the worker can import, not in a script")
    try:
        return pickle.dumps(build)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(f"the build function cannot be sent to a worker: {error}") from None
