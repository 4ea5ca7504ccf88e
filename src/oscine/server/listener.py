"""The socket of the server, and the limit of open files. Light to import: `oscine serve` needs both first."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket

from oscine.errors import ConfigError

_log = logging.getLogger(__name__)

_PORT_ADVICE: dict[int | None, str] = {
    errno.EADDRINUSE: "choose another port with --port",
    errno.EACCES: "choose a port from 1024 on with --port",
}
_OTHER_FILES = 512  # open files and sockets that are not connections of clients


def bind(host: str, port: int) -> socket.socket:
    """Called before anything is loaded, so that a taken port is reported at once. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
        return listener
    except (OSError, TypeError, ValueError) as error:  # the last two: not a valid host name
        listener.close()
        reason = getattr(error, "strerror", None) or error
        advice = _PORT_ADVICE.get(getattr(error, "errno", None), "choose an address of this machine with --host")
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; {advice}") from error


def raise_file_limit(max_connections: int) -> None:
    """Raises the limit of open files, which is 1024 on many systems, so that the connections fit."""
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        needed = max_connections + _OTHER_FILES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= needed:
            return
        possible = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
        except (OSError, ValueError):
            possible = soft
        if possible < needed:
            _log.warning(
                "the system allows %d open files, %d connections need %d; raise the limit (ulimit -n, LimitNOFILE) or "
                "lower server.max_connections",
                *(possible, max_connections, needed),
            )
