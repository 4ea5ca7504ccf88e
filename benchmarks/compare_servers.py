"""Prints two results of benchmarks/server.py side by side, as a Markdown table.

python -m benchmarks.compare_servers docs/results/redesign/server-before.json docs/results/redesign/server-after.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = """\
| load | x real time, before / after | first audio p50 / p95 ms, before | after |
|---|---:|---:|---:|"""


def table(before: Path, after: Path) -> str:
    """The loads that both results have."""
    old, new = _loads(before), _loads(after)
    rows = [
        f"| {name} | {old[name]['x_real_time']:.4g} / {load['x_real_time']:.4g} "
        f"| {_first(old[name])} | {_first(load)} |"
        for name, load in new.items()
        if name in old
    ]
    return "\n".join([HEAD, *rows])


def _loads(path: Path) -> dict[str, Any]:
    result = json.loads(path.read_text(encoding="utf-8"))
    return {_name(one["load"]): one for one in result["figures"]["loads"]}


def _name(load: dict[str, Any]) -> str:
    if load["kind"] == "closed":
        return f"{load['value']:g} caller{'s' if load['value'] > 1 else ''}"
    return f"{load['value']:g} requests/s"


def _first(load: dict[str, Any]) -> str:
    return f"{load['first_audio_ms']['p50']:.1f} / {load['first_audio_ms']['p95']:.1f}"


if __name__ == "__main__":
    print(table(Path(sys.argv[1]), Path(sys.argv[2])))
