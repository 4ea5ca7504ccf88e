"""Results as JSON: figures with the machine, the versions, the commit and the command that made them."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch


def commit() -> str:
    """OSCINE_COMMIT where the files came without their history."""
    if "OSCINE_COMMIT" in os.environ:
        return os.environ["OSCINE_COMMIT"]
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def _command(argv: list[str]) -> str:
    """As anyone can run it: where the files went is this machine's own business."""
    words, skip = ["python"], False
    for word in argv:
        if skip or word in ("--out", "--scratch"):
            skip = not skip
            continue
        words.append(word)
    return shlex.join(words)


def write_result(folder: Path, name: str, figures: dict[str, Any]) -> Path:
    cuda = torch.cuda.is_available()
    result = {
        "name": name,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "command": _command(sys.argv),
        "machine": torch.cuda.get_device_name() if cuda else f"{os.cpu_count()} cores, {platform.machine()}",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "figures": figures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
