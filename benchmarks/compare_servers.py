"""Prints two results of benchmarks/server.py side by side, as a Markdown table.

python -m benchmarks.compare_servers docs/results/redesign/server-before.json docs/results/redesign/server-after.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.report_table import Columns, load, table_of

_FIRST = "{0[first_audio_ms][p50]:.1f} / {0[first_audio_ms][p95]:.1f}"
COLUMNS: Columns = {
    "load": "{key}",
    "x real time, before / after": "{before[x_real_time]:.4g} / {after[x_real_time]:.4g}",
    "first audio p50 / p95 ms, before": lambda row: _FIRST.format(row["before"]),
    "after": lambda row: _FIRST.format(row["after"]),
}


def compared(before: Path, after: Path) -> str:
    """The loads that both results have."""
    old, new = ({_name(row["load"]): row for row in load(path)["figures"]["loads"]} for path in (before, after))
    return table_of(COLUMNS, {name: {"before": old[name], "after": row} for name, row in new.items() if name in old})


def _name(load: dict[str, Any]) -> str:
    if load["kind"] == "closed":
        return f"{load['value']:g} caller{'s' if load['value'] > 1 else ''}"
    return f"{load['value']:g} requests/s"


if __name__ == "__main__":
    print(compared(Path(sys.argv[1]), Path(sys.argv[2])))
