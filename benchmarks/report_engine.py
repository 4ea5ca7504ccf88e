"""Sections of docs/benchmarks.md about the engine: frames, listeners, benchmarks.model, GPU against CPU."""

from __future__ import annotations

from benchmarks.model import COLUMNS, facts
from benchmarks.report_table import GIB, SIZES, Result, Row, origin, paragraph, table

# Before prefill wrote its keys once, and before whole ticks were divided by the number that was timed.
_OLD_FRAMES = "4b0bc27"
KERNELS = {"triton": "Triton", "cuda": "CUDA", "fp8": "CUDA and FP8"}


# --- frames ---


def frame_section(results: list[Result]) -> str:
    results = sorted(results, key=lambda result: "1b7" not in result["figures"])
    bandwidths = " and ".join(f"{result['figures']['copy_bandwidth_tb_s']:.2f}" for result in results)
    how = f"""Random weights of the published sizes, bfloat16, the whole text in the prompt. Times in
        milliseconds; a frame is 80 ms of audio. Talker, predictor and codec are separate graphs,
        timed between device events. The whole tick is wall time with two ticks in flight, as in the
        engine: it includes idle time of the GPU, and the codec may run beside the next frame. The
        share of bandwidth is that of the weights that talker and predictor read, against
        {bandwidths} TB/s of a device copy."""
    return "\n\n".join(["## One frame on the GPU", paragraph(how), *map(_frames, results)])


def _frames(result: Result) -> str:
    figures = result["figures"]
    parts = [origin(result)]
    old = result["commit"].startswith(_OLD_FRAMES)
    if old:
        parts += [
            "",
            "(That commit divided the time of 40 ticks by 41: whole ticks took 2.5 % longer than shown.",
            "To be measured again.)",
        ]
    for size, name in SIZES.items():
        if size in figures:
            measured = by_kernels(figures[size])
            first, last = next(iter(next(iter(measured.values()))["frames"].values()))["positions"]
            parts += ["", f"### {name}, positions {first} to {last}"]
            if len(measured) > 1:
                parts += ["", kernels_table(measured)]
            for kernels, figure in measured.items():
                if len(measured) > 1:
                    parts += ["", f"#### {KERNELS[kernels]} kernels"]
                parts += ["", *_frame_parts(figure, old)]
    return "\n".join(parts)


def by_kernels(figure: Row) -> dict[str, Row]:
    """The figures of one size by the kind of kernels. Older results have Triton's only."""
    return {"triton": figure} if "frames" in figure else figure


def kernels_table(measured: dict[str, Row]) -> str:
    """Kinds of kernels side by side, in ms, and how many times as fast as Triton's tick the others' are."""
    parts = {"talker": "talker", "predictor": "predictor", "tick": "whole tick"}
    others = [kernels for kernels in measured if kernels != "triton" and "triton" in measured]
    times = [f"{part}, {KERNELS[kernels]}" for part in parts.values() for kernels in measured]
    head = ["streams", *times, *(f"{KERNELS[kernels]}, times as fast as Triton" for kernels in others)]
    columns = {kernels: figure["frames"] for kernels, figure in measured.items()}
    rows = []
    for streams in next(iter(columns.values())):
        if all(streams in column for column in columns.values()):
            ticks = {kernels: column[streams]["tick_ms"] for kernels, column in columns.items()}
            row = [f"{column[streams][f'{part}_ms']:.2f}" for part in parts for column in columns.values()]
            rows.append([streams, *row, *(f"{ticks['triton'] / ticks[kernels]:.2f}" for kernels in others)])
    return table(head, rows)


def _frame_parts(figure: Row, old: bool) -> list[str]:
    equal = figure.get("frames_alone_as_in_company_of_24", {})
    counts = ", ".join(f"{streams}: {frames}" for streams, frames in equal.items())
    parts = [
        frame_table(figure),
        "",
        "First audio, from the request to the samples on the host, in ms:",
        "",
        first_audio_table(figure),
        "",
        f"Leading frames of 24 that are equal alone and in a batch (batch size: frames): {counts}.",
    ]
    if old:
        parts += [
            "(In that commit prefill wrote keys twice, with last bits that could differ, while other rows read them.",
            "This caused the differences. It now writes them once. To be measured again.)",
        ]
    return [
        *parts,
        "",
        f"Weights loaded in {figure['loaded_s']:.1f} s; kernels compiled (unless cached) and graphs captured in "
        f"{figure['captured_s']:.0f} s. {figure['budget']}."
        + (f" {figure['memory_gib']:.1f} GiB in total." if "memory_gib" in figure else ""),
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
        paragraph(
            """`python -m benchmarks.model`: one frame of all streams together, on the host's clock and
            between device events (p50 / p95 ms), with the codec and codes only; and the first audio of
            one stream while all others run. `-`: the engine cannot sustain that many streams and
            refuses more."""
        ),
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
        "The whole engine with random weights of the published sizes; `--process`: in its own process. All listeners",
        "start at once and play from their first chunk on. The gap is the total time that a player had to wait.",
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
        f"{churn['requests']} requests of random lengths, {churn['at_once']} at once, a third of them cancelled: each "
        f"ended exactly once ({ends}), the engine was empty afterwards, {churn['took_s']:.1f} s in total."
    )


def cpu_listeners_section(result: Result) -> str:
    figures = result["figures"]
    return "\n".join(
        [
            "## Listeners on a CPU",
            "",
            paragraph(
                f"""The whole engine with a small random checkpoint in fp32, threads: {figures["threads"]}.
                All listeners start at once and play from their first chunk on. The engine refuses
                streams that it cannot sustain."""
            ),
            "",
            origin(result),
            "",
            listeners_table(figures),
        ]
    )


def listeners_table(figures: Row) -> str:
    head = ["listeners", "accepted", "refused", "x real time", "first audio, median ms", "worst ms", "worst gap, ms"]
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
    head = ["small checkpoint", "frames", "codes equal", "largest sample difference"]
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
                *(_reference_speed(f, batch) for batch in (1, 8)),
            ]
            for name, f in ((name, figures[f"published_{size}"]) for size, name in SIZES.items())
        ],
    )
    return "\n".join(
        [
            "## The same codes on CPU and GPU",
            "",
            "The same requests on the CPU and on the GPU, both in fp32: greedy and seeded, both text modes.",
            "",
            origin(result),
            "",
            table(head, rows),
            "",
            "Loading in bfloat16, and the speed of plain PyTorch without graphs and kernels, which the engine does not",
            "run on a GPU.",
            "",
            loading,
        ]
    )


def _reference_speed(figures: Row, batch: int) -> str:
    """Measured while there was a plain path beside the engine."""
    speed = figures.get(f"reference_x_real_time_batch_{batch}")
    return "-" if speed is None else f"{speed:.2f}"
