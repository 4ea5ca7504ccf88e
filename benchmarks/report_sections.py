"""Tables of docs/benchmarks.md: the engine, the way to the first audio, the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.report_table import (
    GIB,
    MIB,
    SIZES,
    Columns,
    Result,
    Row,
    blocks,
    filled,
    origin,
    paragraph,
    section,
    size_name,
    table,
    table_of,
)

KERNELS = {"triton": "Triton", "cuda": "CUDA", "fp8": "CUDA and FP8"}

# --- frames ---

FRAMES: Columns = {
    "streams": "{key}",
    **{part: f"{{{part}_ms:.2f}}" for part in ("talker", "predictor", "codec")},
    "whole tick": "**{tick_ms:.2f}**",
    "x real time, all streams": "{x_real_time:.0f}",
    "of copy bandwidth": "{share_of_copy_bandwidth:.0%}",
}
FIRST_AUDIO: Columns = {
    "other streams": "{key}",
    "prompt": "{prompt_ms:.2f}",
    "admission, host": "{admit_host_ms:.2f}",
    "total, median": "{total_ms:.2f}",
    "total, worst": "{total_worst_ms:.2f}",
}
_BESIDE = "first_audio_ms_beside_"


def frame_section(results: list[Result]) -> str:
    results = sorted(results, key=lambda result: "1b7" not in result["figures"])
    bandwidths = " and ".join(f"{result['figures']['copy_bandwidth_tb_s']:.2f}" for result in results)
    how = f"""Random weights of the published sizes, bfloat16, the whole text in the prompt. Times in
        milliseconds; a frame is 80 ms of audio. Talker, predictor and codec are separate graphs,
        timed between device events. The whole tick is wall time with two ticks in flight, as in the
        engine: it includes idle time of the GPU, and the codec may run beside the next frame. The
        share of bandwidth is that of the weights that talker and predictor read, against
        {bandwidths} TB/s of a device copy."""
    return section("One frame on the GPU", paragraph(how), results, _frames)


def _frames(result: Result) -> str:
    parts = []
    for size, name in SIZES.items():
        if measured := result["figures"].get(size):
            first, last = next(iter(next(iter(measured.values()))["frames"].values()))["positions"]
            parts += [f"### {name}, positions {first} to {last}"]
            parts += [kernels_table(measured)] if len(measured) > 1 else []
            for kernels, figure in measured.items():
                parts += [f"#### {KERNELS[kernels]} kernels"] if len(measured) > 1 else []
                parts += _frame_parts(figure)
    return blocks(*parts)


def kernels_table(measured: dict[str, Row]) -> str:
    """Kinds of kernels side by side, in ms, and how many times as fast as Triton's tick the others' are."""
    parts = {"talker": "talker", "predictor": "predictor", "tick": "whole tick"}
    others = [kernels for kernels in measured if kernels != "triton" and "triton" in measured]
    head = ["streams", *(f"{part}, {KERNELS[kernels]}" for part in parts.values() for kernels in measured)]
    head += [f"{KERNELS[kernels]}, times as fast as Triton" for kernels in others]
    columns = {kernels: figure["frames"] for kernels, figure in measured.items()}
    rows = []
    for streams in next(iter(columns.values())):
        if all(streams in column for column in columns.values()):
            ticks = {kernels: column[streams]["tick_ms"] for kernels, column in columns.items()}
            row = [f"{column[streams][f'{part}_ms']:.2f}" for part in parts for column in columns.values()]
            rows.append([streams, *row, *(f"{ticks['triton'] / ticks[kernels]:.2f}" for kernels in others)])
    return table(head, rows)


def _frame_parts(figure: Row) -> list[str]:
    equal = figure["frames_alone_as_in_company_of_24"]
    counts = ", ".join(f"{streams}: {frames}" for streams, frames in equal.items())
    beside = {name.removeprefix(_BESIDE): times for name, times in figure.items() if name.startswith(_BESIDE)}
    return [
        table_of(FRAMES, figure["frames"]),
        "First audio, from the request to the samples on the host, in ms:",
        table_of(FIRST_AUDIO, beside),
        f"Leading frames of 24 that are equal alone and in a batch (batch size: frames): {counts}.",
        f"Weights loaded in {figure['loaded_s']:.1f} s; kernels compiled (unless cached) and graphs captured in "
        f"{figure['captured_s']:.0f} s. {figure['budget']}. {figure['memory_gib']:.1f} GiB in total.",
    ]


def readme_table(result: Result) -> str:
    head, columns = [f"streams on one {result['machine']}"], []
    for size, name in SIZES.items():
        measured = result["figures"].get(size, {})
        for kernels, figure in measured.items():
            head.append(f"{name}, {f'{KERNELS[kernels]} kernels, ' if len(measured) > 1 else ''}ms per frame")
            columns.append(figure["frames"])
    return table(head, [[count, *(f"{one[count]['tick_ms']:.2f}" for one in columns)] for count in columns[0]])


# --- the engine without a server ---

# Each cell from the row with the codec and the row with codes only.
MODEL_COLUMNS: dict[str, Callable[[Row, Row], str]] = {
    "frame": lambda whole, codes: pair(whole["frame_ms"]),
    "on the device": lambda whole, codes: pair(whole["device_ms"]),
    "codes only": lambda whole, codes: pair(codes["frame_ms"]),
    "x real time, each": lambda whole, codes: f"{whole['x_real_time_each']:.1f}",
    "x real time, all": lambda whole, codes: f"{whole['x_real_time']:.0f}",
    "all, codes only": lambda whole, codes: f"{codes['x_real_time']:.0f}",
    "first audio": lambda whole, codes: pair(whole["first_audio_ms"]),
    "first codes": lambda whole, codes: pair(codes["first_audio_ms"]),
}


def model_bench_section(results: list[Result]) -> str:
    how = """`python -m benchmarks.model`: one frame of all streams together, on the host's clock and between device
        events (p50 / p95 ms), with the codec and codes only; and the first audio of one stream while all others run.
        `-`: the engine cannot sustain that many streams and refuses more."""
    return section(
        "The engine without a server", paragraph(how), results,
        lambda result: blocks(table(*model_cells(result["figures"])), " ".join(model_facts(result["figures"]))),
        size_name,
    )  # fmt: skip


def model_cells(figures: Row) -> tuple[list[str], list[list[str]]]:
    """Head and rows."""
    whole, codes = figures["with_codec"]["rows"], figures["codes_only"]["rows"]
    rows = [[count, *(cell(whole[count], codes[count]) for cell in MODEL_COLUMNS.values())] for count in whole]
    return ["streams", *MODEL_COLUMNS], rows


def pair(figure: Row | None) -> str:
    """Median and 95th percentile, with three digits."""
    return "-" if figure is None else " / ".join(_number(figure[share]) for share in ("p50", "p95"))


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def model_facts(figures: Row) -> list[str]:
    """Sentences that stand below the table."""
    whole, codes = figures["with_codec"], figures["codes_only"]
    first, last = next(iter(whole["rows"].values()))["positions"]
    threads = f"{figures['threads']} thread{'' if figures['threads'] == 1 else 's'}"
    how = "kernels" if figures["kernels"] else f"plain PyTorch, {threads}"
    return [
        f"{figures['dtype']} on {figures['device']} ({how}); positions {first} to {last}, a prompt of "
        f"{figures['prompt_rows']} rows. Loaded in {figures['loaded_s']:.1f} s, captured in "
        f"{whole['captured_s']:.1f} s.",
        f"Memory: {_memory(whole)}; codes only: {_memory(codes)}. {figures['budget']}.",
    ]


def _memory(figures: Row) -> str:
    reserved = figures.get("memory_reserved_bytes")
    used = f"{figures['memory_bytes'] / MIB:.0f} MiB"
    return used if reserved is None else f"{used}, {reserved / MIB:.0f} MiB reserved"


# --- listeners ---

LISTENERS: Columns = {
    "listeners": "{key}",
    "accepted": "{accepted}",
    "refused": "{refused}",
    "x real time": "{x_real_time:.1f}",
    "first audio, median ms": "{first_audio_ms[median]:.0f}",
    "worst ms": "{first_audio_ms[worst]:.0f}",
    "worst gap, ms": "{worst_deficit_ms:.0f}",
}


def listeners_table(result: Result) -> str:
    return table_of(LISTENERS, result["figures"]["listeners"])


def gpu_listeners_section(results: list[Result]) -> str:
    how = """\
The whole engine with random weights of the published sizes; `--process`: in its own process. All listeners
start at once and play from their first chunk on. The gap is the total time that a player had to wait."""
    return section("Listeners on a GPU", how, results, _gpu_listeners, size_name)


def _gpu_listeners(result: Result) -> str:
    figures = result["figures"]
    memory = f", {figures['memory_bytes'] / GIB:.1f} GiB held" if "memory_bytes" in figures else ""
    ready = f"Ready after {figures['ready_s']:.1f} s{memory}." if "ready_s" in figures else ""
    return blocks(listeners_table(result), " ".join(filter(None, (ready, _churned(figures.get("churn"))))))


def _churned(churn: Row | None) -> str:
    if churn is None:
        return ""
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(churn["ends"].items()))
    return (
        f"{churn['requests']} requests of random lengths, {churn['at_once']} at once, a third of them cancelled: each "
        f"ended exactly once ({ends}), the engine was empty afterwards, {churn['took_s']:.1f} s in total."
    )


def cpu_listeners_section(results: list[Result]) -> str:
    how = f"""The whole engine with a small random checkpoint in fp32, threads: {results[0]["figures"]["threads"]}. All
        listeners start at once and play from their first chunk on. The engine refuses streams that it cannot
        sustain."""
    return section(
        "Listeners on a CPU",
        paragraph(how),
        results,
        lambda result: table_of(LISTENERS, result["figures"]["listeners"]),
    )


# --- published sizes on a CPU ---

_CPU: Columns = {
    "weights": "{kind}",
    "listeners": "{listeners}",
    "x real time": "{x_real_time_undisturbed:.2f}",
    "times fp32": lambda row: f"{row['speedup']:.1f}" if row["speedup"] else "-",
    "frame, ms": "{undisturbed_ms:.0f}",
    "talker, ms": "{talker_ms:.0f}",
    "predictor, ms": "{predictor_ms:.0f}",
    "codec, ms": "{codec_ms:.0f}",
    "measured frame, ms": "{frame_ms:.0f}",
    "first audio, ms": "{first_audio_ms:.0f}",
}
_CPU_LOADED: Columns = {
    "weights": "{key}",
    "loaded, s": "{loaded_s:.1f}",
    "memory, MiB": "{all}",
    "of it mapped from files, MiB": "{mapped}",
}


def cpu_section(results: list[Result]) -> str:
    how = """Published shapes with random weights on the backend that `oscine serve` uses. The kinds of weights take
        turns in one process; each figure is the least of all turns. Talker and predictor run beside the codec, which
        has a thread of its own where there are two. First audio: from admission to the samples of the first frame, for
        all listeners together. Memory: of a process that has spoken for one listener. What one thread computes is timed
        in its CPU time, so that other programs do not count; they do in the measured frame, first audio and loading."""
    return section("Published sizes on a CPU", paragraph(how), results, lambda result: cpu_tables(result["figures"]))


def cpu_tables(figures: Row) -> str:
    sets = ", ".join(figures["instruction_sets"]) or "none of AVX2, AVX-512, VNNI, BF16, AMX"
    busy = f"load average at the start: {figures['load_average']:.0f}"
    parts = [f"Threads: {figures['threads']}; instruction sets: {sets}; {busy}."]
    for size, kinds in figures["sizes"].items():
        rows, loaded = {}, {}
        for kind, one in kinds.items():
            loaded[kind] = one | one["resident_mib"]
            for listeners, row in one["listeners"].items():
                fp32 = kinds.get("fp32", {}).get("listeners", {}).get(listeners)
                speedup = fp32["undisturbed_ms"] / row["undisturbed_ms"] if fp32 else None
                rows[f"{kind}, {listeners}"] = row | {"listeners": listeners, "speedup": speedup, "kind": kind}
        parts += [f"**{SIZES[size]}**", table_of(_CPU, rows), table_of(_CPU_LOADED, loaded)]
    return blocks(*parts)


# --- a GPU against a CPU ---

_SAME_CODES: Columns = {
    "small checkpoint": "{key}",
    "frames": "{frames}",
    "codes equal": lambda row: "yes" if row["codes_equal"] else "**no**",
    "largest sample difference": "{largest_sample_difference:.1e}",
}
_LOADING: Columns = {
    "random weights": "{key}",
    "loaded, s": "{loaded_s:.2f}",
    "weights, GiB": "{weights_gib:.2f}",
    "peak while loading": "{gpu_peak_while_loading_gib:.2f}",
    "x real time, 1": lambda row: _plain_speed(row, 1),
    "8 in a batch": lambda row: _plain_speed(row, 8),
}


def reference_section(results: list[Result]) -> str:
    how = "The same requests on the CPU and on the GPU, both in fp32: greedy and seeded, both text modes."
    return section("The same codes on CPU and GPU", how, results, _reference)


def _reference(result: Result) -> str:
    figures = result["figures"]
    loading = """\
Loading in bfloat16, and the speed of plain PyTorch without graphs and kernels, which the engine does not
run on a GPU."""
    sizes = {name: figures[f"published_{size}"] for size, name in SIZES.items()}
    return blocks(table_of(_SAME_CODES, figures["tiny_cpu_against_gpu_fp32"]), loading, table_of(_LOADING, sizes))


def _plain_speed(figures: Row, batch: int) -> str:
    """Measured while there was a plain path beside the engine."""
    speed = figures.get(f"reference_x_real_time_batch_{batch}")
    return "-" if speed is None else f"{speed:.2f}"


# --- the way to the first audio ---

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
    how = """\
Each stage from the client's first byte to its first audio, in ms, p50 / p95. Percentiles do not add up; the
means in the charts do."""
    return section("The way to the first audio", how, results, _first_audio, size_name)


def _first_audio(result: Result) -> str:
    charts = [f"![{_callers(callers)}](images/{file})" for callers, file in _files(result).items()]
    return blocks(stages_table(result["figures"]["loads"]), "\n".join(charts))


def stages_table(loads: Row) -> str:
    stages = next(iter(loads.values()))["stages_ms"]  # of the code that was measured
    times = {stage: [row["stages_ms"][stage] for row in loads.values()] for stage in stages}
    times["**first audio**"] = [row["first_audio_ms"] for row in loads.values()]
    rows = [[stage, *(_shares(one, "p50", "p95") for one in each)] for stage, each in times.items()]
    return table(["stage", *map(_callers, loads)], rows)


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


def _shares(figure: dict[str, float] | None, *names: str) -> str:
    return "-" if figure is None else " / ".join(f"{figure[name]:.2f}" for name in names)


def _times(name: str) -> Callable[[Row], str]:
    return lambda row: _shares(row[name], "p50", "p95", "p99")


# --- the front end alone ---

_CUT_OFF = " ({unfinished} requests cut off after {took_s:.0f} s)"
_FRONT_END: Columns = {
    "load": lambda row: row["key"] + (_CUT_OFF.format_map(row) if row["unfinished"] else ""),
    "first byte": _times("first_byte_ms"),
    "front end's share": _times("front_end_ms"),
    "a bare server's": _times("bare_ms"),
    "each chunk, back": _times("chunk_ms"),
    "loop lag": _times("loop_lag_ms"),
    "CPU": lambda row: f"{100 * row['front_end_cpu_share']:.0f} %",
    "client's": lambda row: f"{100 * row['client']['cpu_share']:.0f} %",
    # Older results have differences below zero.
    "per request": lambda row: (
        f"{us:.0f} us" if (us := row["front_end_cpu_us_per_request"]) is not None and us > 0 else "-"
    ),
}


def front_end_section(results: list[Result]) -> str:
    """The only result is that of benchmarks/front_end.py."""
    (result,) = results
    how = """HTTP, planning, tokenizing, the way to the engine process and back; that process delivers ready-made
        frames. *a bare server's* is the share of one that only passes requests and frames on: the least on that
        machine. Times in ms, p50 / p95 / p99; CPU is the front end process's share of one core, and that of the
        busiest client process: times near its limit are the client's. *per request*: the front end process's
        CPU time above that of an idle one; `-` where the idle one uses too large a share to tell."""
    figures = result["figures"]
    return blocks(
        "## The front end alone", paragraph(how), origin(result) + _busy_words(figures),
        front_end_table(figures["loads"], figures.get("bare", {})),
    )  # fmt: skip


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
    rows: list[list[str]] = []
    for name, row in loads.items():
        if "front_end_ms" in row:
            other = bare.get(name)
            rows += filled(_FRONT_END, [(name, {**row, "bare_ms": other and other["front_end_ms"]})])
        else:
            rows.append([f"{name} (did not end)", *["-"] * 8])
    return table([*_FRONT_END], rows)


# --- the host's time for an admission ---

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
    how = f"""Of the calling thread, in microseconds per request. The loop was measured with a runner that does
        nothing. *runner* is the real one's part. It sends newcomers to the device in packs of up to 512 prompt
        rows (2,048 if prompts are long), each with one transfer. Once {TRANSFERS_UNDER_WAY} transfers are under
        way, the host waits until the device has the oldest (*wait*; older results, with `-`, have it in *runner*).
        All newcomers are admitted in one tick here, so 128 of them fill more packs than that. A server admits no
        more rows in a tick than `engine.pacing.prefill_rows_per_tick`."""
    return section(
        "The host's time for an admission", paragraph(how), results, _admission,
        lambda result: f"Admission, {size_name(result)}, prompts of {result['figures']['prompt_rows']} rows",
    )  # fmt: skip


def _admission(result: Result) -> str:
    figures = result["figures"]
    times = ", ".join(f"{count}: {time_ms:.0f} ms" for count, time_ms in figures.get("prefilled_ms", {}).items())
    until = f"Until all newcomers are prefilled: {times}." if times else ""
    return blocks(admission_table(figures["newcomers"]), until)


def admission_table(newcomers: Row) -> str:
    rows = []
    for count, row in newcomers.items():
        rows.append([count, *(f"{row[name]:.0f}" if name in row else "-" for name in ADMISSION_PARTS)])
    return table(["newcomers", *(f"{name}, us" for name in ADMISSION_PARTS.values())], rows)


# --- from start to ready ---


def startup_section(results: list[Result]) -> str:
    """`results`: of benchmarks/startup.py."""
    return section(
        "From start to ready", "Seconds, with nothing compiled yet and with everything in the caches.", results,
        lambda result: startup_table(result["figures"]),
        lambda result: f"Start, {size_name(result)}, {result['figures']['slots']} slots",
    )  # fmt: skip


def startup_table(figures: Row) -> str:
    runs = [figures[kind] for kind in ("anew", "cached")]
    stages = dict.fromkeys(stage for run in runs for stage in run["stages"])
    rows = [
        [stage, *(f"{run['stages'][stage]:.1f}" if stage in run["stages"] else "-" for run in runs)] for stage in stages
    ]
    rows.append(["**`oscine serve` until ready**", *(f"{run['server']:.1f}" for run in runs)])
    return table(["stage", "anew", "cached"], rows)


# --- planning, before and after the redesign ---


def planning_section(results: list[Result]) -> str:
    """`results`: of benchmarks/planning.py."""
    return section(
        "Planning, before and after the redesign",
        paragraph(
            """From a request's bytes to the plan that the engine speaks, on a CPU. Processes of both commits
            alternate, and the shortest of all batches counts, in seconds of the CPU. `calls`: Python functions that
            one request runs; tests/speech/test_plan_work.py holds their number. The plan says more than before
            (turns, volume, pauses, the phrase cache), and stays below the limit of 124 us. On the H200, the tables
            of this page name c1e6193, which is before the redesign, or 7dacfa6, which has its first steps: nothing
            was measured on both."""
        ),
        results,
        lambda result: planning_table(result["figures"]),
    )


def planning_table(figures: Row) -> str:
    sides = [side for side in ("before", "after") if side in figures]
    head = ["text", *(f"{side}, {unit}" for unit in ("us", "calls") for side in sides)]
    rows = [
        [f"{chars} characters", *(f"{figures[side][name][unit]:.0f}" for unit in ("us", "calls") for side in sides)]
        for name, chars in figures["chars"].items()
    ]
    return table(head, rows)
