"""Results as JSON: figures with the machine, the versions, the commit and the command that made them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from oscine.bench.record import script_result
from oscine.bench.record import write_result as write_json


def write_result(folder: Path, name: str, figures: dict[str, Any]) -> Path:
    result = script_result(name, sys.argv, figures)
    result["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    path = folder / f"{name}.json"
    write_json(path, result)
    return path
