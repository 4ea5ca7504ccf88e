"""Result files: figures with the machine, the versions, the commit and the command that made them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from oscine_bench.record import script_result, write_result


def command_words() -> list[str]:
    """Arguments of `python` that run this benchmark again."""
    spec = sys.modules["__main__"].__spec__
    return ["-m", spec.name, *sys.argv[1:]] if spec else sys.argv


def save(folder: Path, name: str, figures: dict[str, Any], *packages: str) -> Path:
    """`packages`: those whose versions matter, besides torch where it is loaded."""
    result = script_result(name, command_words(), figures, *packages)
    if torch := sys.modules.get("torch"):
        result["versions"] |= {"torch": torch.__version__, "cuda": torch.version.cuda}
    path = folder / f"{name}.json"
    write_result(path, result)
    return path
