"""Sections of docs/benchmarks.md about the time to the first audio: its waterfall, the front end's share of it, the
host's time for an admission, and the start of the server."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report_table import SIZES, Result, Row, origin, paragraph, table

BUSY_SHARE = 0.25  # of the cores: a load average above it
# The way of a request: the name of each stage, and the clock point that ends it. The first one begins at the client.
STAGES = {
    "HTTP in": "arrived",
    "parse": "plan_begun",
    "plan": "planned",
    "to the engine client": "submitted",
    "to the worker": "engine_arrived",
    "tokenize": "prompt_built",
    "wait for the tick": "admit_begun",
    "admit": "admitted",
    "wait for the launch": "launched",  # until it is due (engine/launch_timer.py), and others are admitted
    "wait for the device": "device_begun",
    "prompt, first frame, copy": "framed",
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
        parts += ["", *(f"![{_callers(callers)}](images/{file})" for callers, file in _files(result).items())]
    return "\n".join(parts)


def stages_table(loads: Row) -> str:
    head = ["stage", *map(_callers, loads)]
    stages = next(iter(loads.values()))["stages_ms"]  # of the code that was measured
    rows = [[stage, *(_shares(row["stages_ms"][stage], "p50", "p95") for row in loads.values())] for stage in stages]
    rows.append(["**first audio**", *(_shares(row["first_audio_ms"], "p50", "p95") for row in loads.values())])
    return table(head, rows)


def first_audio_images(results: Sequence[Result]) -> dict[str, str]:
    """SVG by file name, one for each load."""
    from oscine_bench.plots import waterfall_plot

    drawn = {}
    for result in results:
        for callers, file in _files(result).items():
            stages = result["figures"]["loads"][callers]["stages_ms"]
            means = [(stage, figures["mean"]) for stage, figures in stages.items()]
            drawn[file] = waterfall_plot(f"First audio, {_callers(callers)}", "ms", means) + "\n"
    return drawn


def _callers(count: str) -> str:
    return f"{count} {'caller' if count == '1' else 'callers'}"


def _files(result: Result) -> dict[str, str]:
    return {callers: f"{result['name']}-{callers}.svg" for callers in result["figures"]["loads"]}


def front_end_section(result: Result) -> str:
    """`result`: of benchmarks/front_end.py."""
    return "\n".join(
        [
            "## The front end alone",
            "",
            paragraph(
                """HTTP, planning, tokenizing, the way to the engine process and back; that process delivers ready-made
                frames. *a bare server's* is the share of one that only passes requests and frames on: the least on that
                machine. Times in ms, p50 / p95 / p99; CPU is the front end process's share of one core, and that of the
                busiest client process: times near its limit are the client's. *per request*: the front end process's
                CPU time above that of an idle one; `-` where the idle one uses too large a share to tell."""
            ),
            "",
            origin(result) + _busy_words(result["figures"]),
            "",
            front_end_table(result["figures"]["loads"], result["figures"].get("bare", {})),
        ]
    )


def busy_before(figures: Row) -> bool:
    """Whether other work may have disturbed a measurement."""
    return bool(figures["load_average_before"] > BUSY_SHARE * figures["cores"])


def _busy_words(figures: Row) -> str:
    if "load_average_before" not in figures or not busy_before(figures):
        return ""
    average, cores = figures["load_average_before"], figures["cores"]
    return f". The machine was busy just before: load average {average:.1f} on {cores} cores."


def front_end_table(loads: Row, bare: Row) -> str:
    """`bare`: what a bare server did under the same loads, or some of them."""
    head = ["load", "first byte", "front end's share", "a bare server's", "each chunk, back", "loop lag", "CPU"]
    rows = [_front_end_row(name, row, bare.get(name)) for name, row in loads.items()]
    return table([*head, "client's", "per request"], rows)


def _front_end_row(name: str, row: Row, bare: Row | None) -> list[str]:
    if "front_end_ms" not in row:
        return [f"{name} (did not end)", *["-"] * 8]
    cut_off = f" ({row['unfinished']} requests cut off after {row['took_s']:.0f} s)" if row["unfinished"] else ""
    times = [row["first_byte_ms"], row["front_end_ms"], bare and bare["front_end_ms"]]
    times += [row["chunk_ms"], row["loop_lag_ms"]]
    return [
        name + cut_off,
        *(_shares(figure, "p50", "p95", "p99") for figure in times),
        f"{100 * row['front_end_cpu_share']:.0f} %",
        f"{100 * row['client']['cpu_share']:.0f} %",
        # Older results have differences below zero.
        f"{us:.0f} us" if (us := row["front_end_cpu_us_per_request"]) is not None and us > 0 else "-",
    ]


# Parts of an admission, in the result files and in the table.
ADMISSION_PARTS = {
    "prompt_us": "prompt",
    "session_us": "session",
    "submit_us": "into the inbox",
    "loop_us": "loop, admitting tick",
    "frame_us": "loop, later tick",
    "runner_us": "runner",
    "wait_us": "wait",
}

TRANSFERS_UNDER_WAY = 8  # of src/oscine/runner/cuda/admission_block.py


def admission_section(results: list[Result]) -> str:
    """`results`: of benchmarks/admission.py."""
    parts = [
        "## The host's time for an admission",
        "",
        paragraph(
            f"""Of the calling thread, in microseconds per request. The loop was measured with a runner that does
            nothing. *runner* is the real one's part. It sends newcomers to the device in packs of up to 512 prompt
            rows (2,048 if prompts are long), each with one transfer. Once {TRANSFERS_UNDER_WAY} transfers are under
            way, the host waits until the device has the oldest (*wait*; older results, with `-`, have it in *runner*).
            All newcomers are admitted in one tick here, so 128 of them fill more packs than that. A server admits no
            more rows in a tick than `engine.pacing.prefill_rows_per_tick`."""
        ),
    ]
    for result in results:
        name, figures = result["name"].rpartition("-")[2], result["figures"]
        title = f"### Admission, {SIZES.get(name, name)}, prompts of {figures['prompt_rows']} rows"
        parts += ["", title, "", origin(result), "", admission_table(figures["newcomers"])]
        if prefilled := figures.get("prefilled_ms"):
            times = ", ".join(f"{count}: {time_ms:.0f} ms" for count, time_ms in prefilled.items())
            parts += ["", f"Until all newcomers are prefilled: {times}."]
    return "\n".join(parts)


def admission_table(newcomers: Row) -> str:
    rows = []
    for count, row in newcomers.items():
        rows.append([count, *(f"{row[name]:.0f}" if name in row else "-" for name in ADMISSION_PARTS)])
    return table(["newcomers", *(f"{name}, us" for name in ADMISSION_PARTS.values())], rows)


def startup_section(results: list[Result]) -> str:
    """`results`: of benchmarks/startup.py."""
    parts = [
        "## From start to ready",
        "",
        "Seconds, with nothing compiled yet and with everything in the caches.",
    ]
    for result in results:
        name, figures = result["name"].rpartition("-")[2], result["figures"]
        title = f"### Start, {SIZES.get(name, name)}, {figures['slots']} slots"
        parts += ["", title, "", origin(result), "", startup_table(figures)]
    return "\n".join(parts)


def startup_table(figures: Row) -> str:
    stages = {stage: [f"{figures['anew']['stages'][stage]:.1f}", "-"] for stage in figures["anew"]["stages"]}
    for stage, time_s in figures["cached"]["stages"].items():
        stages.setdefault(stage, ["-", "-"])[1] = f"{time_s:.1f}"
    rows = [[stage, *times] for stage, times in stages.items()]
    rows.append(["**`oscine serve` until ready**", *(f"{figures[kind]['server']:.1f}" for kind in ("anew", "cached"))])
    return table(["stage", "anew", "cached"], rows)


def _shares(figure: dict[str, float] | None, *names: str) -> str:
    return "-" if figure is None else " / ".join(f"{figure[name]:.2f}" for name in names)
