"""The tables of docs/kernels.md, from docs/results/cuda-chain.json, codec-times.json and agreement.json."""

from __future__ import annotations

import re
from dataclasses import dataclass

from benchmarks.kernel_shapes import PEAK_TFLOPS, least_bytes, tflop
from benchmarks.report_engine import KERNELS
from benchmarks.report_table import SIZES, Result, Row, origin, paragraph, table

_FRAME = re.compile(r"\w+ frame of (\d+)")
_TIME = re.compile(r"time (.+?) (\d+)( at \d+)?")
_PARTS = ("talker", "predictor", "both")
_MANY_ROWS = 64


def kernel_tables(result: Result, frame: Result | None = None) -> str:
    """`frame`: its bandwidth is used for results that have none of their own."""
    figures, machine = result["figures"], result["machine"]
    times = figures["times"]
    measured_with = times if "copy_bandwidth_tb_s" in times else frame["figures"] if frame else {}
    limits = Limits(measured_with.get("copy_bandwidth_tb_s"), PEAK_TFLOPS.get(machine))
    about = f"""Medians of graph replays. {limits.words(times)} Above 16 rows, a product's time includes the norm
        before it, or the copy of x into tiles, if it has one. {origin(result)}"""
    measured = any(f"frames-{size}" in figures for size in SIZES)
    return "\n\n".join([*([_frames(figures)] if measured else []), _kernels(times, limits), paragraph(about)])


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


def codec_table(result: Result) -> str:
    figures = result["figures"]
    counts = [*figures["rows"]]
    rows = []
    for name, first in figures["rows"][counts[0]]["parts"].items():
        parts = [figures["rows"][count]["parts"][name] for count in counts]
        rows.append([name, str(first["launches"]), *(f"{one['us']:.1f} ({_share(one)})" for one in parts)])
    steps = [f"**{figures['rows'][count]['step_us']:.0f}**" for count in counts]
    rows.append(["**whole step**", str(sum(int(row[1]) for row in rows)), *steps])
    head = ["part", "launches", *(f"{count} stream{'' if count == '1' else 's'}" for count in counts)]
    limits = f"{figures['bytes_per_us'] / 1e6:.1f} TB/s", f"{figures['flops_per_us'] / 1e6:.0f} TFLOP/s"
    about = f"""Microseconds from a part's first launch to the next part, and the share of them that the hardware would
        need: for the bytes that each launch must read and write once, at {limits[0]}, or for its products at
        {limits[1]}, whichever takes longer. The whole step is timed from outside, with the launch of its graph. The
        transformer runs on {figures["transformer"]}'s kernels. Launches are those of the first column of times.
        {origin(result)}"""
    return f"{table(head, rows)}\n\n{paragraph(about)}"


def _share(part: Row) -> str:
    return f"{part['limit_us'] / part['us']:.0%}"


def agreement_table(result: Result) -> str:
    figures = result["figures"]
    about = f"""Leading codes (of 1,600) of {figures["sequences"]} greedy sequences that equal those of plain PyTorch in
        bf16, with random weights, where near ties are frequent. {origin(result)}"""
    rows = [
        [f"{name}, {KERNELS[kind]}", f"{one['leading_codes_mean']:.1f}", f"{one['standard_error']:.1f}"]
        for size, name in SIZES.items()
        for kind, one in figures.get(size, {}).items()
        if kind in KERNELS
    ]
    return f"{table(['kernels', 'mean', 'standard error'], rows)}\n\n{paragraph(about)}"


def _frames(figures: Row) -> str:
    rows = []
    for size, name in SIZES.items():
        for key, one in figures.get(f"frames-{size}", {}).items():
            if (found := _FRAME.fullmatch(key)) and "speedup" in one:
                times = [f"{one[f'cuda {part} ms']:.2f} / {one[f'triton {part} ms']:.2f}" for part in _PARTS]
                rows.append([f"{name}, {found[1]}", *times, f"{one['speedup']:.2f}"])
    head = ["streams", *(f"{part}, ms" for part in ("talker", "predictor", "both")), "Triton / CUDA"]
    return f"One frame without the codec, CUDA / Triton:\n\n{table(head, rows)}"


def _kernels(times: Row, limits: Limits) -> str:
    counts: list[str] = []
    cells: dict[str, dict[str, str]] = {}
    for key, one in times.items():
        found = _TIME.fullmatch(key)
        if found is None or "triton_us" not in one:
            continue
        if found[2] not in counts:
            counts.append(found[2])
        context = int(found[3].split()[-1]) if found[3] else 0
        shares = limits.shares(found[1], int(found[2]), context, one["cuda_us"])
        cell = f"{one['cuda_us']:.1f} / {one['triton_us']:.1f}{shares}"
        cells.setdefault(found[1] + (found[3] or ""), {})[found[2]] = cell
    rows = [[name, *(of_counts.get(count, "") for count in counts)] for name, of_counts in cells.items()]
    head = ["kernel", *(f"{count} row{'' if count == '1' else 's'}" for count in counts)]
    shares = f"CUDA's share of bandwidth; for products from {_MANY_ROWS} rows on, of peak too"
    return f"One kernel, CUDA / Triton, microseconds ({shares}):\n\n{table(head, rows)}"
