"""Tables of other pages than docs/benchmarks.md: kernels, reliability, Triton, export, timestamps."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchmarks.kernel_shapes import PEAK_TFLOPS, least_bytes, tflop
from benchmarks.report_sections import KERNELS
from benchmarks.report_table import SIZES, Columns, Result, Row, blocks, filled, origin, paragraph, table, table_of

# --- docs/kernels.md ---

_TIME = re.compile(r"time (.+?) (\d+)( at \d+)?")
_MANY_ROWS = 64


def kernel_tables(result: Result, frame: Result | None = None) -> str:
    """`frame`: its bandwidth is used for results that have none of their own."""
    figures, machine = result["figures"], result["machine"]
    times = figures["times"]
    measured_with = times if "copy_bandwidth_tb_s" in times else frame["figures"] if frame else {}
    limits = Limits(measured_with.get("copy_bandwidth_tb_s"), PEAK_TFLOPS.get(machine))
    about = f"""Medians of graph replays. {limits.words(times)} Above 16 rows, a product's time includes the norm
        before it, or the copy of x into tiles, if it has one. {origin(result)}"""
    return blocks(_kernels(times, limits), paragraph(about))


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a GPU; None: not known."""

    tb_s: float | None
    peak_tflops: float | None

    def shares(self, kernel: str, rows: int, context: int, us: float) -> str:
        """The share of bandwidth and, from 64 rows on, a product's share of the peak."""
        least, work = least_bytes(kernel, rows, context), tflop(kernel, rows)
        parts = [f"{least / (self.tb_s * 1e6 * us):.0%}"] if self.tb_s and least is not None else []
        if self.peak_tflops and work is not None and rows >= _MANY_ROWS:
            parts.append(f"{work / (self.peak_tflops * us * 1e-6):.0%}")
        return f" ({', '.join(parts)})" if parts else ""

    def words(self, times: Row) -> str:
        found, of_norms = [], "; of a norm, its rows" if any("rms_norm" in key for key in times) else ""
        if self.tb_s:
            found.append(
                f"""The share is that of {self.tb_s:.2f} TB/s, the bandwidth of a copy: of a product, what its weights
                need; of an attention, cached keys and values, which repeated calls find in L2 if they are less than
                50 MB; of a sampler, logits and looked-up rows{of_norms}."""
            )
        if self.peak_tflops:
            found.append(f"The peak is {self.peak_tflops:g} TFLOP/s (dense, bf16).")
        return " ".join(found)


def _kernels(times: Row, limits: Limits) -> str:
    counts: dict[str, None] = {}
    cells: dict[str, dict[str, str]] = {}
    for key, one in times.items():
        found = _TIME.fullmatch(key)
        if found is None or "triton_us" not in one:
            continue
        counts[found[2]] = None
        context = int(found[3].split()[-1]) if found[3] else 0
        shares = limits.shares(found[1], int(found[2]), context, one["cuda_us"])
        cell = f"{one['cuda_us']:.1f} / {one['triton_us']:.1f}{shares}"
        cells.setdefault(found[1] + (found[3] or ""), {})[found[2]] = cell
    rows = [[name, *(of_counts.get(count, "") for count in counts)] for name, of_counts in cells.items()]
    head = ["kernel", *(f"{count} row{'' if count == '1' else 's'}" for count in counts)]
    shares = f"CUDA's share of bandwidth; for products from {_MANY_ROWS} rows on, of peak too"
    return blocks(f"One kernel, CUDA / Triton, microseconds ({shares}):", table(head, rows))


def codec_table(result: Result) -> str:
    figures = result["figures"]
    steps = figures["rows"].values()
    first = next(iter(steps))["parts"]
    rows = []
    for name, one in first.items():
        parts = [step["parts"][name] for step in steps]
        rows.append([name, str(one["launches"]), *(f"{p['us']:.1f} ({p['limit_us'] / p['us']:.0%})" for p in parts)])
    whole = [str(sum(one["launches"] for one in first.values())), *(f"**{step['step_us']:.0f}**" for step in steps)]
    head = ["part", "launches", *(f"{count} stream{'' if count == '1' else 's'}" for count in figures["rows"])]
    limits = f"{figures['bytes_per_us'] / 1e6:.1f} TB/s", f"{figures['flops_per_us'] / 1e6:.0f} TFLOP/s"
    about = f"""Microseconds from a part's first launch to the next part, and the share of them that the hardware would
        need: for the bytes that each launch must read and write once, at {limits[0]}, or for its products at
        {limits[1]}, whichever takes longer. The whole step is timed from outside, with the launch of its graph. The
        transformer runs on {figures["transformer"]}'s kernels. Launches are those of the first column of times.
        {origin(result)}"""
    return blocks(table(head, [*rows, ["**whole step**", *whole]]), paragraph(about))


_AGREEMENT: Columns = {
    "kernels": "{key}", "mean": "{leading_codes_mean:.1f}", "standard error": "{standard_error:.1f}",
}  # fmt: skip


def agreement_table(result: Result) -> str:
    figures = result["figures"]
    about = f"""Leading codes (of 1,600) of {figures["sequences"]} greedy sequences that equal those of plain PyTorch in
        bf16, with random weights, where near ties are frequent. {origin(result)}"""
    rows = {
        f"{name}, {KERNELS[kind]}": one
        for size, name in SIZES.items()
        for kind, one in figures.get(size, {}).items()
        if kind in KERNELS
    }
    return blocks(table_of(_AGREEMENT, rows), paragraph(about))


# --- docs/reliability.md ---

_KINDS = {
    "http": "listen over HTTP",
    "events": "listen to events",
    "wav": "fetch a WAV",
    "websocket": "speak words over WebSocket",
    "leave": "leave in the middle",
    "interrupt": "interrupt, and speak again",
    "refused": "send a bad request",
    "broken": "send broken bytes",
    "upload": "upload a voice (preset checkpoints refuse it)",
}
_SOAK: Columns = {
    "clients that": "{key}",
    "number": "{total:,}",
    "served as expected": "{served:,}",
    "told to come back": "{refused}",
    "met the dead engine": lambda row: str(row["total"] - row["served"] - row["refused"]),
}
_MEMORY = {
    "front_end_mib": "front end",
    "engine_mib": "engine",
    "device_mib": "allocated by torch",
    "gpu_used_mib": "of the GPU",
}


_ATTACKS: Columns = {
    "100 at once": "{key}",
    "front end at its peak, MiB": "{peak_mib:.0f}",
    "`/health` p95": lambda row: f"{row['health_ms']['p95']:.0f}",
    "gap of a stream p95": lambda row: f"{row['gap_ms']['p95']:.0f}",
    "voice list p95": lambda row: f"{row['list_ms']['p95']:.0f}",
    "voice upload p95": lambda row: f"{row['upload_ms']['p95']:.0f}",
}


def attack_table(result: Result) -> str:
    """Times in ms. The row without an attack is that of the same machine at the same time."""
    figures = result["figures"]
    rows = {"no attack" if name == "none" else name: row for name, row in figures["attacks"].items()}
    load = f"Times in ms. Other programs used the same cores: the load average was {figures['load_average']:.0f}."
    return blocks(table_of(_ATTACKS, rows), paragraph(load), origin(result))


def soak_table(result: Result) -> str:
    rows = {}
    for kind, words in _KINDS.items():
        counts = Counter(result["figures"]["results"][kind])
        refused = counts["http_429"] + counts["overloaded"]
        rows[words] = {"total": counts.total(), "served": counts["ok"], "refused": refused}
    return blocks(_soak_words(result["figures"]), table_of(_SOAK, rows), origin(result))


def short_soak_words(result: Result) -> str:
    return blocks(_soak_words(result["figures"]), origin(result))


def _soak_words(figures: Row) -> str:
    first, kills = figures["first_audio_ms"], [f"{kill['back_after_s']:.1f} s" for kill in figures["kills"]]
    unexpected = sum(figures["failures"].values())
    slopes = ", ".join(
        f"{words} {round(slope['mib_per_minute'], 2) + 0.0:.2f}"
        for name, words in _MEMORY.items()
        if (slope := figures["slopes"].get(name))
    )
    same = "the same" if figures["alone"]["before"] == figures["alone"]["after"] else "OTHER"
    left = "nothing" if not any(value > 0 for value in figures["left"].values()) else f"{figures['left']}"
    return paragraph(
        f"""{_model(figures)}: {figures["requests"]:,} clients in {figures["seconds"] / 60:.0f} minutes,
        {figures["rate_per_s"]:.3g} a second. The engine was killed {len(kills)} times and was back after
        {" and ".join(kills)}. Unexpected results: {unexpected}. First audio p50 {first["p50"]:.0f}, p95
        {first["p95"]:.0f}, at most {first["most"]:.0f} ms; the longest playback deficit was
        {figures["deficit_ms"]["most"]:.0f} ms (p99 {figures["deficit_ms"]["p99"]:.0f}), while the engine waited
        {figures["engine_starved_s"]:.1f} s in all for a core. At the end, the same seeds gave {same} bytes as at the
        beginning, and {left} was still held. Memory over the second half, MiB per minute: {slopes}."""
    )


_SPREAD = "{0[p50]:.0f} / {0[p95]:.0f} / {0[most]:.0f}"
# Rows of the table, which has a column for the overload and one for each burst.
_OVERLOAD: Columns = {
    "": "{rate_per_s:.0f} requests/s for {seconds:.0f} s (3 x capacity)",
    "requests": "{requests:,}",
    "admitted": "{accepted:,}",
    "429 without Retry-After": "{refusals_without_retry_after}",
    "tries of a client, at most": "1 (nobody came again)",
    "first audio p50 / p95 / most, ms": lambda load: _SPREAD.format(load["first_audio_ms"]),
    "refusal p50 / p95 / most, ms": lambda load: _SPREAD.format(load["refused_after_ms"]),
    "admitted streams with a gap": "{underruns[requests]}",
}


def overload_table(result: Result) -> str:
    figures = result["figures"]
    (overload,) = filled(_OVERLOAD, [("", figures["overload"])])
    first, *titles = _OVERLOAD
    columns = [[_model(figures) + first, *titles], overload, *map(_burst_column, figures["bursts"])]
    head, *rows = map(list, zip(*columns, strict=True))
    waits = f"`engine.queue_wait_s` was {figures['queue_wait_s']:g}."
    return blocks(table(head, rows), f"{waits} {origin(result)}")


def _burst_column(burst: Row) -> list[str]:
    retried = sum(count for tries, count in burst["tries"].items() if int(tries) > 1)
    after = f", {retried} of them after a 429" if retried else ""
    most_ms = burst["deficit_ms"]["most"]
    return [
        f"{burst['clients']} at once",
        f"{burst['clients']}",
        f"{burst['results'].get('ok', 0)}{after}",
        str(burst["results"].get("http_429", 0)),
        str(max(map(int, burst["tries"]))),
        _SPREAD.format(burst["first_audio_ms"]),
        "-",
        f"some, at most {most_ms:.0f} ms" if most_ms else "0",
    ]


_FORECAST_PHASES = ("before", "beside a busy loop on each core", "after it")
_FORECASTS = ("first_burst", "bursts", "later")


def forecast_table(result: Result) -> str:
    """Forecast divided by wait; 1 is right, 2 twice too long. A phase that began on a busy machine is marked."""
    figures, cores = result["figures"], int(result["machine"].split()[0])

    def name(phase: str, load: float) -> str:
        return f"{phase} (other programs ran)" if load > cores else phase

    columns: Columns = {
        f"demo voice, bursts of {figures['requests']}": "{key}",
        "load average": "{load_average:.0f}",
        "admitted at once": lambda row: " to ".join(map(str, sorted({min(row["admitted"]), max(row["admitted"])}))),
        "longest median wait, s": lambda row: (
            f"{max(waits):.1f}" if (waits := [row[one]["wait_s"] for one in _FORECASTS if row[one]]) else "-"
        ),
        "forecast / wait in the first burst": lambda row: _ratio(row["first_burst"]),
        "in the other bursts: p10 / p50 / p90": lambda row: _ratio(row["bursts"]),
        "while the streams run": lambda row: _ratio(row["later"]),
    }
    phases = {
        name(phase, row.get("load_before", row["load_average"])): row
        for phase, row in zip(_FORECAST_PHASES, figures["phases"].values(), strict=True)
    }
    parts = [table_of(columns, phases)]
    if default := figures.get("default_wait"):
        where = name("bursts", default["load_before"])
        fewest = min(one["spoken"] for one in default["rounds"])
        longest_s = max(one["done_s"] for one in default["rounds"])
        parts.append(
            f"With the default `engine.queue_wait_s`, {where} of {figures['requests']} requests of "
            f"{default['characters']} characters: at least {fewest} of each were spoken, within {longest_s:.1f} s."
        )
    return blocks(*parts, origin(result))


def _ratio(figures: Row | None) -> str:
    shares = () if figures is None else ("p50",) if figures["count"] == 1 else ("p10", "p50", "p90")
    return " / ".join(f"{figures[name]:.2f}" for name in shares) if figures else "-"


def _model(figures: Row) -> str:
    name = SIZES.get(figures["model"])
    return f"{name or 'Demo voice'}, {figures['slots']} slots"


# --- docs/deploy/triton.md ---


def triton_table(result: Result) -> str:
    """Our own server and Triton, load by load."""
    figures = result["figures"]
    first = "{first_audio_ms[p50]:.1f} / {first_audio_ms[p95]:.1f}"
    columns: Columns = {
        f"callers, {_model(figures)}": "{key}",
        "x real time, `oscine serve`": "{own[x_real_time]:.0f}",
        "Triton": "{triton[x_real_time]:.0f}",
        "first audio p50 / p95, `oscine serve`, ms": lambda row: first.format_map(row["own"]),
        "Triton, ms": lambda row: first.format_map(row["triton"]),
    }
    own, triton = (figures[name]["loads"] for name in ("own", "triton"))
    loads = {callers: {"own": own[callers], "triton": triton[callers]} for callers in own}
    return blocks(table_of(columns, loads), origin(result, "../"))


# --- docs/guides ---

SHAPES = {"published": "published shapes, random weights", "demo": "demo voice"}


def export_tables(result: Result) -> str:
    times = (
        "Times are CPU times of one thread for calls, and of all threads for exports; other programs ran beside them."
    )
    return blocks(_contexts(result["figures"]), _files(result["figures"]), f"{times} {origin(result)}")


def _contexts(figures: Row) -> str:
    """How far samples are off, by the frames of left context."""
    measured = {words: figures[shapes] for shapes, words in SHAPES.items() if shapes in figures}
    frames = sorted({int(context) for one in measured.values() for context in one["context_errors"]})

    def cell(one: Row, context: int) -> str:
        error = one["context_errors"].get(str(context))
        return "" if error is None else f"{error:.1e}{' (default)' * (context == one['default_context'])}"

    rows = [[str(context), *(cell(one, context) for one in measured.values())] for context in frames]
    return table(["frames of left context", *(f"largest error, {words}" for words in measured)], rows)


def _files(figures: Row) -> str:
    call = f"{figures['new_frames']} new frames of 1 / 4 streams, CPU ms"
    rows = []
    for shapes, words in SHAPES.items():
        if shapes in figures:
            for part, one in figures[shapes]["parts"].items():
                error = f"{max(one['errors'].values()):.1e}"
                made = [f"{one['megabytes']:.1f}", f"{one['export_cpu_s']:.0f}", error]
                rows.append([f"{part}, {words}", *made, _each_ms(one.get("call_cpu_ms", {}))])
            own = _each_ms(figures[shapes]["own_decoder_cpu_ms"])
            rows.append([f"our own decoder (PyTorch), {words}", "", "", "", own])
    return table(["file", "MB", "export and checks, CPU s", "largest error of a check", call], rows)


def _each_ms(times_ms: dict[str, float]) -> str:
    return " / ".join(f"{ms:.0f}" for ms in times_ms.values())


_ERRORS = "median / p95 / bias, ms"
_ALIGNMENT: Columns = {
    "model": "{model}",
    "voice": "{voice}",
    "words": "{words}",
    f"start: {_ERRORS}": lambda row: _errors(row["start_ms"]),
    f"end: {_ERRORS}": lambda row: _errors(row["end_ms"]),
    "CPU s per s of audio": "{cpu_s_per_audio_s:.3f}",
}


def alignment_table(result: Result) -> str:
    figures = result["figures"]
    rows = {
        f"{name} {voice}": {"model": name, "voice": voice, **one}
        for name, model in figures["models"].items()
        for voice, one in model["voices"].items()
    }
    late = ", ".join(f"{name} {model['late_ms']:+} ms" for name, model in figures["models"].items())
    versions = f"ctranslate2 {result['versions']['ctranslate2']}, Festival {figures['synthesizers']['festival-slt']}"
    versions += f", espeak-ng {figures['synthesizers']['espeak-ng']}"
    about = f"Corrected lateness: {late}. One thread; {versions}. {origin(result)}"
    return blocks(table_of(_ALIGNMENT, rows), paragraph(about))


def text_cost_table(result: Result) -> str:
    """Plain prose, and the contents that take longest."""
    seconds, short = result["figures"]["seconds"], result["figures"]["ms_of_1000_chars"]
    levels = list(seconds["plain prose"])
    slowest = sorted(seconds, key=lambda name: -max(seconds[name].values()))[:12]
    rows = [
        [name, *(f"{seconds[name][level]:.2f} s / {short[name][level]:.1f} ms" for level in levels)]
        for name in ("plain prose", *slowest)
    ]
    worst, worst_short = (max(max(one.values()) for one in all_of.values()) for all_of in (seconds, short))
    about = f"""CPU time of 200,000 / 1,000 characters, for plain prose and the slowest of {len(seconds)} kinds of
    content. At most {worst:.1f} s and {worst_short:.1f} ms. {origin(result)}"""
    return blocks(table(["content", *levels], rows), paragraph(about))


def _errors(errors: dict[str, Any] | None) -> str:
    """espeak-ng reports no ends."""
    return "{median} / {p95} / {bias:+}".format_map(errors) if errors else ""
