"""Writes and reads result files: JSON with the machine, the versions, the commit and the command that made the
figures."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from oscine import __version__
from oscine.commit import commit
from oscine.errors import OscineError, RequestError

KIND = "oscine bench"
FORMAT = 1

Result = dict[str, Any]
# The shown command has neither paths, which belong to one machine, nor keys, which are secret.
_PRIVATE_OPTIONS = ("--out", "-o", "--scratch", "--records", "--transcriber-python", "--api-key")


def machine() -> str:
    """Describes the GPUs of this machine, or its processors."""
    names = _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    if names:
        return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def shown_command(argv: Sequence[str], program: str = "oscine") -> str:
    """Returns the command in a form that others can run."""
    words, skip = [program], False
    for word in argv:
        name, has_value, _ = word.partition("=")
        if skip or name in _PRIVATE_OPTIONS:
            skip = not skip and not has_value
            continue
        words.append(word)
    return shlex.join(words)


def versions(*packages: str) -> dict[str, str]:
    found = {"oscine": __version__, "python": platform.python_version()}
    for package in ("httptools", "uvloop", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def script_result(
    name: str, argv: Sequence[str], figures: dict[str, Any], *packages: str, program: str = "python"
) -> Result:
    """Makes a result with the versions of these packages."""
    return {
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "command": shown_command(argv, program),
        "machine": machine(),
        "versions": versions(*packages),
        "figures": figures,
    }


def make_result(
    name: str,
    argv: Sequence[str],
    figures: dict[str, Any],
    *,
    server_machine: str | None = None,
    program: str = "oscine",
) -> Result:
    """Makes a result of loads on a server, as read_result reads it."""
    result = script_result(name, argv, figures, program=program)
    return {"kind": KIND, "format": FORMAT, **result, "machine": server_machine or result["machine"]}


def check_writable(path: Path) -> None:
    """Fails before the measurement if its result could not be written."""
    existing = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if path.is_dir() or (existing != path.absolute() and not existing.is_dir()) or not os.access(existing, os.W_OK):
        raise RequestError(f"cannot write --out {str(path)!r}; choose a file in a writable folder", "out")


def write_result(path: Path, result: Result) -> None:
    """Writes any result: non-finite numbers become null, other unknown values their text. The file is replaced in one
    step, so a full disk does not destroy an older result."""
    content = json.dumps(_rounded(result), indent=1, allow_nan=False, default=str) + "\n"
    temporary = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OscineError(f"cannot write the result to {str(path)!r}: {error}") from None


def _rounded(value: Any) -> Any:
    """Rounds to six digits; more would be noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_result(
    path: Path, kind: str = KIND, version: int = FORMAT, made_by: str = "oscine bench run", schema: Any = None
) -> Result:
    """Reads a result. `schema`: a msgspec type of the keys that must exist; by default that of `oscine bench`."""
    import msgspec  # not at the top: scripts on bare GPU machines only write results

    from oscine_bench.result_schema import RESULT

    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read {str(path)!r} as a result of `{made_by}`: {error}", "results") from None
    if not isinstance(result, dict) or result.get("kind") != kind:
        raise RequestError(f"{str(path)!r} is not a result of `{made_by}`", "results")
    if (found := result.get("format")) != version:
        raise RequestError(f"{str(path)!r} has format {found!r}, but this version reads {version}", "results")
    try:
        msgspec.convert(result, schema or RESULT)
    except msgspec.ValidationError as error:
        raise RequestError(f"{str(path)!r} is not a complete result of `{made_by}`: {error}", "results") from None
    return result if schema else {**result, "file": path.name}  # the file name distinguishes results of one name
