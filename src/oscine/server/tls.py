"""Certificate and key of HTTPS: checked before anything is loaded."""

from __future__ import annotations

import ssl

from oscine.errors import ConfigError


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
