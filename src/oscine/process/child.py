"""Spawns processes that run one module of this package, exchanges messages with them over a socket, and ends them.

Only the standard library is imported: a server spawns its first worker before it reads its settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import IO, Any, Self, cast

# The parent's sys.path is set before anything else is imported: the child runs the same package, and no file in the
# current folder takes the place of a library. Ctrl-C reaches the whole process group; the parent decides what ends.
_BOOTSTRAP = """
import importlib, json, signal, sys
sys.path[:] = json.loads(sys.argv[1])
signal.signal(signal.SIGINT, signal.SIG_IGN)
importlib.import_module(sys.argv[2]).main(*sys.argv[3:])
"""
_STDERR = 2
_KILL_S = 30.0  # a process that hangs in a driver may not react to SIGKILL
_PR_SET_PDEATHSIG = 1


class Child:
    """A process that runs `main` of a module, and the socket to it."""

    def __init__(self, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Spawns the process. `main` gets the descriptor of its end of the socket (see `connection_to_parent`), then
        the arguments, all as strings. Its standard input is empty, and what it prints goes to standard error. Raises
        OSError."""
        if os.name == "nt":
            raise OSError("child processes need Linux or macOS; on Windows, use WSL2")
        self.connection, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_error, theirs:
            on_error.callback(self.connection.close)
            fixed = (json.dumps([*map(str, sys.path)]), module, str(theirs.fileno()))
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOTSTRAP, *fixed, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=_STDERR,
                env=None if environment is None else dict(environment),
                pass_fds=[theirs.fileno()],
            )
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @cached_property
    def pipe(self) -> IO[bytes]:
        """The connection as a file, for `read_message` and `write_message`."""
        return as_pipe(self.connection)

    def end(self, timeout_s: float = 0.0) -> None:
        """Disconnects, which makes the process end, and kills it if it still runs after `timeout_s`."""
        with contextlib.suppress(OSError):
            # Wakes up a thread that waits for an answer: its pipe stays open and reads as ended.
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout_s)
        if self.popen.poll() is None:
            self.popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(_KILL_S)


def connection_to_parent(descriptor: str) -> socket.socket:
    """Opens the child's end of the socket. Programs that the child starts do not inherit it."""
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    return connection


def as_pipe(connection: socket.socket) -> IO[bytes]:
    return cast(IO[bytes], connection.makefile("rwb"))


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Lets the kernel send the signal when the thread that spawned this process ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


# --- Garbage collection of a process that must not pause.


_YOUNG_OBJECTS = 10_000  # Python: 700


def freeze_gc() -> None:
    """Excludes all existing objects from later collections. Call it once, at the end of startup.

    A full collection visits every object: 200,000 of torch, 90,000 of the server's libraries. On a slow core that takes
    as long as a frame. Requests make objects that live as long as their streams, and hardly any garbage: 250
    collections during 1,500 requests took up to 15 ms each and found nothing. So collections become rarer. They are not
    switched off, because libraries make cycles; ours are broken up (`errors.clear_tracebacks`).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def importing() -> Iterator[None]:
    """Disables collections while the body imports modules, and excludes the modules' objects from later ones.

    Importing torch makes 200,000 objects and hardly any garbage; collections took a tenth of that time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# --- Messages: a line of JSON that states how many bytes follow, then the bytes.

Message = dict[str, Any]


def write_message(pipe: IO[bytes], message: Mapping[str, Any], content: bytes = b"") -> None:
    pipe.write(json.dumps({**message, "bytes": len(content)}).encode() + b"\n" + content)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> tuple[Message, bytes]:
    """Raises EOFError if the other side has closed the pipe, also in the middle of a message."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the other process closed the pipe")
    message: Message = json.loads(line)
    size = message.pop("bytes")
    if len(content := pipe.read(size)) < size:
        raise EOFError("the other process closed the pipe")
    return message, content
