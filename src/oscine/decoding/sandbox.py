"""Takes rights away from the current process, for good: memory, CPU time, files, sockets, processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys

_PR_SET_NO_NEW_PRIVS = 38


def drop_rights(*, memory_bytes: int, cpu_s: int) -> None:
    """`memory_bytes` come on top of what the process has now. Open files stay usable, and no other can be opened: all
    imports must be done. A limit that the platform does not have is skipped."""
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
    # SIGXCPU at the first limit says why the process ended; SIGKILL at the second.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))


def _address_space_bytes() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
