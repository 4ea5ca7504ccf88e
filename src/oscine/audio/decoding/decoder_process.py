"""The process that decodes audio files. It loads the decoders once and keeps a few forked children that wait for a
file. A child takes one file, drops its rights, decodes and exits; another child replaces it.

So a file that takes over its decoder can reach no other file and nothing of the front end: no memory, no environment,
no open file except the socket for its answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import pkgutil
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import av

from oscine.audio.decoding import wire
from oscine.audio.decoding.decoders import Block
from oscine.audio.decoding.wire import ANY_CLIP, ClipLimits
from oscine.errors import VoiceError
from oscine.process.child import connection_to_parent, die_with_parent

Decode = Callable[[bytes, str, ClipLimits], Iterator[Block]]

_CHILDREN = 2  # as many as the front end has threads for cloning
_WALL_S = 120  # maximum for one file; the front end gives up earlier
_NO_MORE_JOBS = 3  # exit status
_SEND_BYTES = 2**18  # libav's frames have a few kB: one message each would wake the front end hundreds of times


def main(connection: str, module: str) -> None:
    """Forks children until there are no more jobs. `module` has the function `decode`."""
    control = connection_to_parent(connection)
    decode: Decode = importlib.import_module(module).decode
    _load_everything(decode)
    gc.freeze()  # memory that is not written to stays shared with the children
    children: set[int] = set()
    while True:
        while len(children) < _CHILDREN:
            children.add(_fork_child(control, decode))
        pid, status = os.wait()
        children.discard(pid)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == _NO_MORE_JOBS:
            return


def _load_everything(decode: Decode) -> None:
    """Imports and runs everything that decoding needs, because a child cannot open files."""
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if module.name not in ("av.__main__", "av.datasets"):
            importlib.import_module(module.name)
    wav = bytes.fromhex("52494646 2c000000 57415645 666d7420 10000000 0100 0100 401f0000 803e0000 0200 1000 64617461")
    for file in (wav + b"\x08\0\0\0" + bytes(8), bytes(600)):  # for libsndfile, for PyAV
        with contextlib.suppress(VoiceError):
            list(decode(file, "", ANY_CLIP))


def _fork_child(control: socket.socket, decode: Decode) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        if os.getppid() == parent:  # otherwise the parent died before this child could notice
            status = _serve_one(control, decode)
    finally:
        os._exit(status)


def _serve_one(control: socket.socket, decode: Decode) -> int:
    message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    control.close()  # other jobs come through it
    if not message:
        return _NO_MORE_JOBS
    connection = socket.socket(fileno=descriptors[0])
    job = wire.receive_job(connection)
    wire.send_answer(connection, wire.ACCEPTED)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libav prints messages about every file
    signal.alarm(_WALL_S)
    drop_rights(memory_bytes=job.memory_bytes + job.file_bytes, cpu_s=job.cpu_s)
    try:
        encoded = wire.receive(connection, job.file_bytes)
        _send_blocks(connection, decode(encoded, job.name, job.limits))
    except Exception as error:
        wire.send_answer(connection, wire.REFUSAL, content=_message(job, error).encode(errors="replace"))
    return 0


def _send_blocks(connection: socket.socket, blocks: Iterator[Block]) -> None:
    rate_hz, unsent = 0, bytearray()
    for block in blocks:
        rate_hz = block.rate_hz
        unsent += block.samples.tobytes()
        if len(unsent) >= _SEND_BYTES:
            wire.send_answer(connection, wire.BLOCK, rate_hz, bytes(unsent))
            unsent.clear()
    wire.send_answer(connection, wire.BLOCK, rate_hz, bytes(unsent))
    wire.send_answer(connection, wire.END)


def _message(job: wire.DecodingJob, error: Exception) -> str:
    match error:
        case VoiceError():
            return str(error)
        case MemoryError():
            reason = f"it needs more than {job.memory_bytes >> 20} MiB of memory"
        case _:
            reason = f"{type(error).__name__}: {error}"
    return f"{job.name} cannot be decoded ({reason}); export it as wav or flac"


# --- Rights of a child: memory, CPU time, files, sockets, processes.


_PR_SET_NO_NEW_PRIVS = 38


def drop_rights(*, memory_bytes: int, cpu_s: int) -> None:
    """Takes rights from this process permanently. `memory_bytes` are added to what the process has now. Open files stay
    usable and no other can be opened, so all imports must be done. A limit that the platform lacks is skipped."""
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,  # does not bind root
        resource.RLIMIT_NOFILE: 0,  # neither files nor sockets
    }
    if (size_bytes := _address_space_bytes()) is not None:
        limits[resource.RLIMIT_AS] = size_bytes + memory_bytes
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for limit, value in limits.items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))
    # SIGXCPU at the first limit shows why the process ended; SIGKILL follows at the second.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _address_space_bytes() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
