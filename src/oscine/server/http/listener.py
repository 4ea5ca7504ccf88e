"""The server's socket, its limit of open files and its TLS files. Quick to import: `oscine serve` checks them first."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import ssl

from oscine.errors import ConfigError

_log = logging.getLogger(__name__)

_PORT_ADVICE: dict[int | None, str] = {
    errno.EADDRINUSE: "choose another port with --port",
    errno.EACCES: "choose a port from 1024 on with --port",
}
_OTHER_FILES = 512  # open files and sockets that are not connections of clients


def bind(host: str, port: int) -> socket.socket:
    """Opens the server's socket, before anything is loaded: a taken port is reported at once. Raises ConfigError."""
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


def check_tls_files(certificate: str | None, key: str | None) -> None:
    """Raises ConfigError if a TLS server cannot use these PEM files. Without `key`, the certificate's file has it."""
    if certificate is None:
        return
    for setting, file in (("tls_cert", certificate), ("tls_key", key)):
        if file is not None:
            _check_readable(setting, file)
    encrypted = False

    def refuse_password() -> str:  # otherwise OpenSSL would ask on the terminal
        nonlocal encrypted
        encrypted = True
        return ""

    holder = key or certificate
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, refuse_password)
    except ssl.SSLError as error:
        if encrypted:
            message = f"the key in {holder!r} needs a password; decrypt it with `openssl pkey -in {holder} -out KEY`"
        elif error.reason == "KEY_VALUES_MISMATCH":
            message = f"the key in {holder!r} does not belong to the certificate in {certificate!r}"
        elif key is None:
            message = f"{certificate!r} does not hold a certificate and its key as PEM; name the key with --tls-key"
        else:
            message = f"{certificate!r} and {key!r} are not a certificate and its key as PEM"
        raise ConfigError(f"server.tls_cert: {message}") from error


def _check_readable(setting: str, file: str) -> None:
    try:
        with open(file, "rb"):
            pass
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"server.{setting}: cannot read {file!r}: {reason}") from error
