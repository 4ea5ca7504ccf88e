"""Self-signed certificates for 127.0.0.1, made by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import require_program


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


def self_signed(folder: Path, name: str = "server") -> Certificate:
    made = Certificate(folder / f"{name}.pem", folder / f"{name}.key")
    command = [require_program("openssl", "openssl"), "req", "-x509", "-nodes", "-days", "2", "-newkey", "ec"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", made.cert, "-keyout", made.key]
    subprocess.run(command, check=True, capture_output=True)
    return made


def encrypted_copy(key: Path) -> Path:
    copy = key.with_suffix(".encrypted")
    command = [require_program("openssl", "openssl"), "pkey", "-in", key, "-out", copy, "-aes256", "-passout", "pass:x"]
    subprocess.run(command, check=True, capture_output=True)
    return copy
