"""The tables of docs/kernels.md, from docs/results/cuda-chain.json and agreement.json."""

from __future__ import annotations

import re

from benchmarks.report_engine import KERNELS
from benchmarks.report_table import SIZES, Result, Row, origin, paragraph, table

_FRAME = re.compile(r"\w+ frame of (\d+)")
_TIME = re.compile(r"time (.+?) (\d+)( at \d+)?")
_PARTS = ("talker", "predictor", "both")


def kernel_tables(result: Result) -> str:
    about = (
        "Medians of graph replays. The share is that of the bandwidth that the weights alone need. Above 16 rows, a "
    )
    about += f"product's time includes the norm before it, or the copy of x into tiles, if it has one. {origin(result)}"
    figures = result["figures"]
    measured = any(f"frames-{size}" in figures for size in SIZES)
    return "\n\n".join([*([_frames(figures)] if measured else []), _kernels(figures["times"]), paragraph(about)])


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


def _kernels(times: Row) -> str:
    counts: list[str] = []
    cells: dict[str, dict[str, str]] = {}
    for key, one in times.items():
        found = _TIME.fullmatch(key)
        if found is None or "triton_us" not in one:
            continue
        if found[2] not in counts:
            counts.append(found[2])
        share = f" ({one['bandwidth_share']:.0%})" if "bandwidth_share" in one else ""
        cell = f"{one['cuda_us']:.1f} / {one['triton_us']:.1f}{share}"
        cells.setdefault(found[1] + (found[3] or ""), {})[found[2]] = cell
    rows = [[name, *(of_counts.get(count, "") for count in counts)] for name, of_counts in cells.items()]
    head = ["kernel", *(f"{count} row{'' if count == '1' else 's'}" for count in counts)]
    return f"One kernel, CUDA / Triton, microseconds (share of bandwidth):\n\n{table(head, rows)}"
