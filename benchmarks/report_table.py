"""Shared by all sections of docs/benchmarks.md: results, Markdown tables, the origin of figures."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
SIZES = {"1b7": "1.7B", "0b6": "0.6B"}
GIB, MIB = 2**30, 2**20

Result = dict[str, Any]
Row = dict[str, Any]


def load(path: Path) -> Result:
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paragraph(text: str) -> str:
    """Wrapped again, because figures vary in length."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def origin(result: Result) -> str:
    versions = result["versions"]
    torch = f"torch {versions['torch']}, " if "torch" in versions else ""
    return (
        f"{result['machine']}, {torch}Python {versions['python']}, commit {result['commit']}, "
        f"{result['date']}: `{result['command']}`"
    )
