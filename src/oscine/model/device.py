"""Where a model runs and in what precision, as callers ask for it, and how much memory is free there."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from oscine.types import OscineError

Device = Literal["auto", "cpu", "cuda"] | str
Dtype = Literal["auto", "float32", "bfloat16"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_MEMORY = Path("/proc/meminfo")


def choose_device(asked: str) -> torch.device:
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except (RuntimeError, TypeError):
        raise OscineError(f"unknown device {asked!r} (possible: auto, cpu, cuda, cuda:0, ...)") from None
    if device.type not in ("cpu", "cuda"):
        raise OscineError(f"device {asked!r} is not supported (possible: auto, cpu, cuda, cuda:0, ...)")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OscineError(
            f"device {asked!r} is not on this machine ({torch.cuda.device_count()} CUDA devices); use cpu"
        )
    return device


def choose_dtype(asked: str, device: torch.device) -> torch.dtype:
    if asked == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if not isinstance(asked, str) or asked not in _DTYPES:
        raise OscineError(f"unknown dtype {asked!r} (possible: auto, {', '.join(_DTYPES)})")
    return _DTYPES[asked]


def free_bytes(device: torch.device) -> int | None:
    """None: this system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if not _MEMORY.exists():
        return None
    lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
    return int(lines["MemAvailable"].removesuffix("kB")) * 1024
