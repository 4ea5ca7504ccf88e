"""Renders what the tables' specifications say (report_sections.py, report_pages.py and others): cells, Markdown tables,
paragraphs, sections, and the origin of figures.

A column is a format string, which is given the fields of a row and its `key`, or a function of them.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
SIZES = {"1b7": "1.7B", "0b6": "0.6B"}
GIB, MIB = 2**30, 2**20
LATER_FRAME = "later_frame"  # in a result: the date of the newest frame, if that is later
_CORES = re.compile(r"\d+ cores, ")  # a machine without a GPU

Result = dict[str, Any]
Row = dict[str, Any]
Columns = Mapping[str, str | Callable[[Row], str]]  # by their titles


def load(path: Path) -> Result:
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return result


def filled(columns: Columns, rows: Iterable[tuple[str, Row]]) -> list[list[str]]:
    """The cells of each row."""
    found = [{"key": key, **row} for key, row in rows]
    return [[one.format_map(row) if isinstance(one, str) else one(row) for one in columns.values()] for row in found]


def table_of(columns: Columns, rows: Mapping[str, Row], last: Sequence[str] = ()) -> str:
    """`last`: one more row."""
    return table([*columns], [*filled(columns, rows.items()), *([last] if last else [])])


def words_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of words, which is not aligned to the right."""
    return table(head, rows).replace("---:", "---")


def blocks(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))


def section(
    title: str,
    how: str,
    results: Iterable[Result],
    body: Callable[[Result], str],
    heading: Callable[[Result], str] = lambda result: "",
) -> str:
    """What was measured, then each result: its heading, its origin, its tables and sentences."""
    each = [blocks(heading(result) and f"### {heading(result)}", origin(result), body(result)) for result in results]
    return blocks(f"## {title}", how, *each)


def size_name(result: Result) -> str:
    """The size in the end of a result's name, or that end."""
    name = result["name"].rpartition("-")[2]
    return SIZES.get(name, name)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paragraph(text: str) -> str:
    """Wrapped again, because figures vary in length."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def origin(result: Result, to_docs: str = "") -> str:
    """`to_docs`: from the page's folder."""
    versions = result["versions"]
    torch = f"torch {versions['torch']}, " if "torch" in versions else ""
    made = (
        f"{result['machine']}, {torch}Python {versions['python']}, commit {result['commit']}, "
        f"{result['date']}: `{result['command']}`"
    )
    if LATER_FRAME not in result:
        return made
    frame = f"[frame]({to_docs}benchmarks.md#one-frame-on-the-gpu) of {result[LATER_FRAME]}"
    return f"{made}. This is older than the {frame}, whose kernels may be faster."


def marked_if_older(result: Result, frame_date: str) -> Result:
    """A GPU's result from before the newest frame was measured is shown with a sentence about that."""
    on_a_gpu = isinstance(result, dict) and not _CORES.match(result.get("machine") or "0 cores, ")
    if on_a_gpu and (result.get("date") or frame_date) < frame_date:
        return {**result, LATER_FRAME: frame_date}
    return result
