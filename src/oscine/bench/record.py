"""Results as JSON: figures with the machine, the versions, the commit and the command that made them."""

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
from oscine.bench.shapes import fault_in
from oscine.types import OscineError, RequestError

KIND = "oscine bench"
FORMAT = 1

Result = dict[str, Any]
# Where files went is this machine's business, a key is nobody's.
_PRIVATE = ("--out", "-o", "--scratch", "--records", "--listen-with", "--api-key")


def commit() -> str:
    """Of the source that runs; OSCINE_COMMIT where it came without its history."""
    if "OSCINE_COMMIT" in os.environ:
        return os.environ["OSCINE_COMMIT"]
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():  # installed: any repository around it is somebody else's
        return "unknown"
    return _said("git", "-C", str(root), "describe", "--always", "--dirty") or "unknown"


def machine() -> str:
    """The GPUs of this machine, or its processors."""
    gpus = _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if gpus:
        names = gpus.splitlines()
        return names[0] if len(names) == 1 else f"{len(names)} x {names[0]}"
    return f"{os.cpu_count()} cores, {platform.machine()}"


def _said(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip()


def shown_command(argv: Sequence[str], program: str = "oscine") -> str:
    """As anyone can run it."""
    words, skip = [program], False
    for word in argv:
        name, has_value, _ = word.partition("=")
        if skip or name in _PRIVATE:
            skip = not skip and not has_value
            continue
        words.append(word)
    return shlex.join(words)


def versions() -> dict[str, str]:
    found = {"oscine": __version__, "python": platform.python_version()}
    for package in ("httptools", "uvloop"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def script_result(
    name: str, argv: Sequence[str], figures: dict[str, Any], *packages: str, program: str = "python"
) -> Result:
    """Of a script or command of this project, with the versions of what it measured."""
    return {
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "command": shown_command(argv, program),
        "machine": machine(),
        "versions": {**versions(), **{package: metadata.version(package) for package in packages}},
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
    """Of loads that were put to a server; what `read_result` reads."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "command": shown_command(argv, program),
        "machine": server_machine or machine(),
        "versions": versions(),
        "figures": figures,
    }


def check_writable(path: Path) -> None:
    """Before anything is measured: where `--out` cannot be written, minutes would be lost."""
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if path.is_dir() or (there != path.absolute() and not there.is_dir()) or not os.access(there, os.W_OK):
        raise RequestError(f"--out {str(path)!r} cannot be written; give a file in a folder of yours", "out")


def write_result(path: Path, result: Result) -> None:
    """Whatever it holds: a figure that is no number becomes null, what JSON does not know becomes its text. Minutes of
    measuring are not lost to one value, nor an older result to a full disk."""
    content = json.dumps(_rounded(result), indent=1, allow_nan=False, default=str) + "\n"
    beside = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(content, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise OscineError(f"the result cannot be written to {str(path)!r}: {error}") from None


def _rounded(value: Any) -> Any:
    """Six digits: more are noise, and twice the file."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def read_result(path: Path, kind: str = KIND, version: int = FORMAT, made_by: str | None = None) -> Result:
    maker = f"`{made_by}`" if made_by else "`oscine bench run` or `search`"
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{str(path)!r} cannot be read as a result of {maker}: {error}", "results") from None
    if not isinstance(result, dict) or result.get("kind") != kind:
        raise RequestError(f"{str(path)!r} is no result of {maker}", "results")
    if result.get("format") != version:
        found = result.get("format")
        raise RequestError(
            f"{str(path)!r} has format {found!r}, this version reads {version}; measure again", "results"
        )
    if kind == KIND:
        if fault := fault_in(result, _RESULT) or fault_in(result["figures"].get("search"), _SEARCH, "figures.search"):
            raise RequestError(f"{str(path)!r} is no whole result of `oscine bench run`: {fault}", "results")
        result["file"] = path.name  # tells results of one name apart
    return result


# What a report reads of a result (shapes.py).
_NUMBER = (None, int | float)
_TIMES = (None, {"p50": _NUMBER, "p95": _NUMBER})
_LATE = (None, {"p99": int | float})
_ROW = {
    "load": {"kind": str, "value": int | float},
    **dict.fromkeys(("requests", "succeeded", "inaudible"), int),
    "failures": dict,
    "audio_s": (None, {"mean": _NUMBER}),
    **dict.fromkeys(("x_real_time", "requests_per_s"), _NUMBER),
    **dict.fromkeys(("first_audio_ms", "audible_ms", "e2e_ms"), _TIMES),
    "underruns": {
        **dict.fromkeys(("applicable", "requests"), int),
        **dict.fromkeys(("share_over_100_ms", "worst_deficit_ms"), _NUMBER),
    },
    "send_lag_ms": _LATE,
    "timelines": dict,
    "client": {"loop_lag_ms": _LATE, "starved_share": _NUMBER},
}
_RESULT = {
    **dict.fromkeys(("name", "date", "commit", "command", "machine"), str),
    "versions": {"oscine": str, "python": str},
    "figures": {"target": {"preset": str, "transport": str}, "workload": {"name": str}, "loads": [_ROW]},
}
_LIMITS = {"figure": str, "p95_ms": _NUMBER, "underrun_ms": _NUMBER}
_SEARCH = (None, {"rate_per_s": _NUMBER, "limits": _LIMITS})
