"""What the benchmarks share: arguments on the command line, and result files with the machine, the versions, the commit
and the command that made the figures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oscine_bench.record import script_result, write_result

RESULTS = Path("docs/results")
SCRATCH = Path(".cache/gpu")  # checkpoints with random weights


def read_arguments(
    doc: str | None, words: Sequence[str] | None = None, positional: Sequence[str] = (), **options: Any
) -> argparse.Namespace:
    """Reads the command line: --out, and these options, of which each has a default or the type of a value that may be
    missing; a list: one value or more. A tuple adds the help to that; a dict is what argparse takes."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in {"out": RESULTS, **options}.items():
        default, text = option if isinstance(option, tuple) else (option, None)
        if isinstance(option, dict):
            more = option
        elif isinstance(default, bool):
            more = {"action": "store_true", "help": text}
        elif isinstance(default, type):
            more = {"type": default, "help": text}
        elif isinstance(default, list):
            more = {"nargs": "+", "type": type(default[0]), "default": default, "help": text}
        else:
            more = {"type": type(default) if not isinstance(default, Path) else Path, "default": default, "help": text}
        parser.add_argument(name if name in positional else f"--{name.replace('_', '-')}", **more)
    return parser.parse_args(words)


def stopwatch() -> Callable[[str], None]:
    """Prints what is said, after the seconds since now."""
    begun_s = time.monotonic()
    return lambda what: print(f"[{time.monotonic() - begun_s:4.0f} s] {what}", flush=True)


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
