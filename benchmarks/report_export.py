"""The tables of docs/guides/export.md, from docs/results/export/export.json."""

from __future__ import annotations

from benchmarks.report_table import Result, origin, table

SHAPES = {"published": "published shapes, random weights", "demo": "demo voice"}


def export_tables(result: Result) -> str:
    times = (
        "Times are CPU times of one thread for calls, and of all threads for exports; other programs ran beside them."
    )
    return f"{_contexts(result)}\n\n{_files(result)}\n\n{times} {origin(result)}"


def _contexts(result: Result) -> str:
    """How far samples are off, by the frames of left context."""
    figures = result["figures"]
    measured = {shapes: figures[shapes] for shapes in SHAPES if shapes in figures}
    frames = sorted({int(context) for one in measured.values() for context in one["context_errors"]})
    rows = []
    for context in frames:
        row = [str(context)]
        for one in measured.values():
            error = one["context_errors"].get(str(context))
            mark = " (default)" if context == one["default_context"] else ""
            row.append("" if error is None else f"{error:.1e}{mark}")
        rows.append(row)
    return table(["frames of left context", *(f"largest error, {SHAPES[shapes]}" for shapes in measured)], rows)


def _files(result: Result) -> str:
    figures = result["figures"]
    call = f"{figures['new_frames']} new frames of 1 / 4 streams, CPU ms"
    rows = []
    for shapes, words in SHAPES.items():
        if shapes not in figures:
            continue
        for part, one in figures[shapes]["parts"].items():
            times = " / ".join(f"{ms:.0f}" for ms in one.get("call_cpu_ms", {}).values())
            error = f"{max(one['errors'].values()):.1e}"
            rows.append([f"{part}, {words}", f"{one['megabytes']:.1f}", f"{one['export_cpu_s']:.0f}", error, times])
        own = " / ".join(f"{ms:.0f}" for ms in figures[shapes]["own_decoder_cpu_ms"].values())
        rows.append([f"our own decoder (PyTorch), {words}", "", "", "", own])
    return table(["file", "MB", "export and checks, CPU s", "largest error of a check", call], rows)
