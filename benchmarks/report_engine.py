"""Sections of docs/benchmarks.md about the engine: frames, listeners, `oscine bench model`, the reference path."""

from __future__ import annotations

from benchmarks.model import COLUMNS, facts
from benchmarks.report_table import GIB, SIZES, Result, Row, origin, table

# Before prefill wrote its keys once, and before whole ticks were divided by the number that was timed.
_OLD_FRAMES = "4b0bc27"


# --- frames ---


def frame_section(result: Result) -> str:
    figures = result["figures"]
    parts = [
        "## One frame on the GPU",
        "",
        "Random weights of the published sizes, bfloat16, whole text in the prompt. Milliseconds; a frame is 80 ms of",
        "sound. Talker, predictor and codec are graphs of their own between device events; the whole tick is wall time",
        "with two ticks in flight, as the engine runs them, so what the GPU idles between ticks is in it. The share of",
        f"bandwidth is that of the weights read by talker and predictor, against {figures['copy_bandwidth_tb_s']:.2f}",
        "TB/s of a device copy.",
        "",
        origin(result),
    ]
    old = result["commit"].startswith(_OLD_FRAMES)
    if old:
        parts += [
            "",
            "(At that commit 40 ticks were timed and divided by 41: whole ticks took 2.5 % longer than is said here.",
            "To be measured again.)",
        ]
    for size, name in SIZES.items():
        if size in figures:
            first, last = next(iter(figures[size]["frames"].values()))["positions"]
            parts += ["", f"### {name}, positions {first} to {last}", "", *_frame_parts(figures[size], old)]
    return "\n".join(parts)


def _frame_parts(figure: Row, old: bool) -> list[str]:
    equal = figure.get("frames_alone_as_in_company_of_24", {})
    said = ", ".join(f"{company}: {frames}" for company, frames in equal.items())
    parts = [
        frame_table(figure),
        "",
        "First audio, from the request to samples on the host, in ms:",
        "",
        first_audio_table(figure),
        "",
        f"Of 24 frames, those that a request says alone as among so many: {said}.",
    ]
    if old:
        parts += [
            "(At that commit prefill wrote keys twice, with last bits that could differ, while other rows read them:",
            "the differences begin there. Since then it writes them once; to be measured again.)",
        ]
    return [
        *parts,
        "",
        f"Weights loaded in {figure['loaded_s']:.1f} s, kernels compiled (those that no run had compiled before) "
        f"and graphs captured in {figure['captured_s']:.0f} s. {figure['budget']}."
        + (f" {figure['memory_gib']:.1f} GiB in all." if "memory_gib" in figure else ""),
    ]


def frame_table(figures: Row) -> str:
    head = ["streams", "talker", "predictor", "codec", "whole tick", "x real time, all streams", "of copy bandwidth"]
    rows = [
        [
            streams,
            *(f"{figure[f'{part}_ms']:.2f}" for part in ("talker", "predictor", "codec")),
            f"**{figure['tick_ms']:.2f}**",
            f"{figure['x_real_time']:.0f}",
            f"{figure['share_of_copy_bandwidth']:.0%}",
        ]
        for streams, figure in figures["frames"].items()
    ]
    return table(head, rows)


def first_audio_table(figures: Row) -> str:
    head = ["other streams", "prompt", "admission, host", "total, median", "total, worst"]
    rows = []
    for name, figure in figures.items():
        if name.startswith("first_audio_ms_beside_"):
            times = [figure[f"{part}_ms"] for part in ("prompt", "admit_host", "total", "total_worst")]
            rows.append([name.rsplit("_", 1)[1], *(f"{time:.2f}" for time in times)])
    return table(head, rows)


# --- the engine without a server ---


def model_bench_section(results: list[Result]) -> str:
    parts = [
        "## The engine without a server",
        "",
        "`oscine bench model`: a frame for so many streams at once, by the host's clock and between device events",
        "(p50 / p95 ms), with the codec and without; and the first audio of the last of them, which comes while all",
        "the others speak. `-`: the engine cannot keep so many in real time, and lets nobody more in.",
    ]
    for result in results:
        figures = result["figures"]
        whole, codes = figures["with_codec"]["rows"], figures["codes_only"]["rows"]
        rows = [[count, *(cell(whole[count], codes[count]) for cell in COLUMNS.values())] for count in whole]
        parts += ["", f"### {result['name']}", "", origin(result), ""]
        parts += [table(["streams", *COLUMNS], rows), "", " ".join(facts(figures))]
    return "\n".join(parts)


# --- listeners ---


def gpu_listeners_section(results: list[Result]) -> str:
    parts = [
        "## Listeners on a GPU",
        "",
        "The whole engine, in its own process where the command says so, on random weights of the published sizes. All",
        "listeners come at once and play from their first chunk on; a gap is all that a player had to wait for.",
    ]
    for result in results:
        figures = result["figures"]
        size = result["name"].rsplit("-", 1)[-1]
        memory = f", {figures['memory_bytes'] / GIB:.1f} GiB held" if "memory_bytes" in figures else ""
        ready = f"Ready after {figures['ready_s']:.1f} s{memory}." if "ready_s" in figures else ""
        parts += ["", f"### {SIZES.get(size, size)}", "", origin(result), ""]
        parts += [listeners_table(figures), "", " ".join(filter(None, (ready, _churned(figures.get("churn")))))]
    return "\n".join(parts)


def _churned(churn: Row | None) -> str:
    if churn is None:
        return ""
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(churn["ends"].items()))
    return (
        f"{churn['requests']} requests of random lengths, {churn['at_once']} at once, a third of them cancelled on the "
        f"way: each ended once ({ends}), nothing was left behind, {churn['took_s']:.1f} s in all."
    )


def cpu_listeners_section(result: Result) -> str:
    figures = result["figures"]
    return "\n".join(
        [
            "## Listeners on a CPU",
            "",
            f"The whole engine, a small random checkpoint in fp32, threads: {figures['threads']}. All listeners come",
            "at once and play from their first chunk on. Whom the engine cannot keep in real time it refuses.",
            "",
            origin(result),
            "",
            listeners_table(figures),
        ]
    )


def listeners_table(figures: Row) -> str:
    head = ["listeners", "taken", "refused", "x real time", "first audio, median ms", "worst ms", "worst gap, ms"]
    rows = [
        [
            count,
            str(figure["accepted"]),
            str(figure["refused"]),
            f"{figure['x_real_time']:.1f}",
            f"{figure['first_audio_ms']['median']:.0f}",
            f"{figure['first_audio_ms']['worst']:.0f}",
            f"{figure['worst_deficit_ms']:.0f}",
        ]
        for count, figure in figures["listeners"].items()
    ]
    return table(head, rows)


# --- the reference path ---


def reference_section(result: Result) -> str:
    figures = result["figures"]
    tiny = figures["tiny_cpu_against_gpu_fp32"]
    head = ["small checkpoint", "frames", "codes equal", "largest difference of a sample"]
    rows = [
        [name, str(f["frames"]), "yes" if f["codes_equal"] else "**no**", f"{f['largest_sample_difference']:.1e}"]
        for name, f in tiny.items()
    ]
    loading = table(
        ["random weights", "loaded, s", "weights, GiB", "peak while loading", "x real time, 1", "8 in a batch"],
        [
            [
                name,
                f"{f['loaded_s']:.2f}",
                f"{f['weights_gib']:.2f}",
                f"{f['gpu_peak_while_loading_gib']:.2f}",
                f"{f['reference_x_real_time_batch_1']:.2f}",
                f"{f['reference_x_real_time_batch_8']:.2f}",
            ]
            for name, f in ((name, figures[f"published_{size}"]) for size, name in SIZES.items())
        ],
    )
    return "\n".join(
        [
            "## The reference path",
            "",
            "The same request on the CPU and on the GPU, both in fp32, greedy and seeded, both text modes.",
            "",
            origin(result),
            "",
            table(head, rows),
            "",
            "Loading in bfloat16, and the speed of the plain path (no graphs, no kernels): what the engine is held",
            "to, not what it runs.",
            "",
            loading,
        ]
    )
