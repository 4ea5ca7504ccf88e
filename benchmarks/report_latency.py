"""Sections of docs/benchmarks.md about the time to the first audio: its waterfall, and the front end's share of it."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report_table import SIZES, Result, Row, origin, table

# The way of a request: the name of each stage, and the clock point that ends it. The first one begins at the client.
STAGES = {
    "HTTP in": "arrived",
    "parse": "plan_begun",
    "plan": "planned",
    "to a thread": "submitted",
    "to the worker": "engine_arrived",
    "tokenize": "prompt_built",
    "wait for the tick": "admit_begun",
    "admit": "admitted",
    "others' admission": "launched",
    "wait for the device": "device_begun",
    "prefill": "prefilled",
    "first frame, copy": "framed",
    "wait for the host": "collected",
    "fill the chunk": "delivered",
    "to the front end": "received",
    "encode": "encoded",
    "HTTP out": "first_byte",
}


def first_audio_section(results: list[Result]) -> str:
    """`results`: of benchmarks/first_audio.py."""
    parts = [
        "## The way to the first audio",
        "",
        "Each stage from the client's first byte to its first audio, in ms, p50 / p95. Percentiles do not add up; the",
        "means in the charts do.",
    ]
    for result in results:
        name = result["name"].rpartition("-")[2]
        parts += ["", f"### {SIZES.get(name, name)}", "", origin(result), "", stages_table(result["figures"]["loads"])]
        parts += ["", *(f"![{callers} callers](images/{file})" for callers, file in _files(result).items())]
    return "\n".join(parts)


def stages_table(loads: Row) -> str:
    head = ["stage", *(f"{callers} {'caller' if callers == '1' else 'callers'}" for callers in loads)]
    rows = [[stage, *(_shares(row["stages_ms"][stage], "p50", "p95") for row in loads.values())] for stage in STAGES]
    rows.append(["**first audio**", *(_shares(row["first_audio_ms"], "p50", "p95") for row in loads.values())])
    return table(head, rows)


def first_audio_images(results: Sequence[Result]) -> dict[str, str]:
    """SVG by file name, one for each load."""
    from oscine_bench.plots import waterfall_plot

    drawn = {}
    for result in results:
        for callers, file in _files(result).items():
            stages = result["figures"]["loads"][callers]["stages_ms"]
            means = [(stage, stages[stage]["mean"]) for stage in STAGES]
            drawn[file] = waterfall_plot(f"First audio, {callers} callers", "ms", means) + "\n"
    return drawn


def _files(result: Result) -> dict[str, str]:
    return {callers: f"{result['name']}-{callers}.svg" for callers in result["figures"]["loads"]}


def front_end_section(result: Result) -> str:
    """`result`: of benchmarks/front_end.py."""
    return "\n".join(
        [
            "## The front end alone",
            "",
            "HTTP, planning, tokenizing, the way to the engine process and back; that process delivers ready-made",
            "frames. Times in ms, p50 / p95 / p99; CPU is the front end process's share of one core.",
            "",
            origin(result),
            "",
            front_end_table(result["figures"]["loads"]),
        ]
    )


def front_end_table(loads: Row) -> str:
    head = ["load", "first byte", "front end's share", "each chunk, back", "loop lag", "CPU", "CPU per request"]
    shown = ("first_byte_ms", "front_end_ms", "chunk_ms", "loop_lag_ms")
    rows = [
        [
            name,
            *(_shares(row[figure], "p50", "p95", "p99") for figure in shown),
            f"{100 * row['front_end_cpu_share']:.0f} %",
            f"{row['front_end_cpu_us_per_request']:.0f} us",
        ]
        for name, row in loads.items()
    ]
    return table(head, rows)


def _shares(figure: dict[str, float] | None, *names: str) -> str:
    return "-" if figure is None else " / ".join(f"{figure[name]:.2f}" for name in names)
