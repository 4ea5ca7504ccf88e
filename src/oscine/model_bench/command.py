"""`oscine bench model`: options become a Plan, figures become a table and a file."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from oscine.types import ConfigError, RequestError

console = Console(stderr=True)  # standard output is for results
_MIB = 2**20

Row = dict[str, Any]


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


def bench_model(
    model: Annotated[str, typer.Argument(help="Folder, hub id, or 'demo'")] = "demo",
    rows: Annotated[
        str | None, typer.Option(help="Streams at once, such as 1,8,32; default: 1,8,32,64,128, on a CPU 1,2,4,8")
    ] = None,
    frames: Annotated[int, typer.Option(help="Frames of 80 ms that are timed at each number of streams")] = 56,
    context: Annotated[int, typer.Option(help="Positions that a stream has behind it when timing begins")] = 64,
    probes: Annotated[int, typer.Option(help="Requests for a first audio, at each number of streams")] = 20,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="auto: bfloat16 on a GPU, float32 elsewhere")] = Dtype.auto,
    name: Annotated[str | None, typer.Option(help="What tables call this result")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the result")] = None,
) -> None:
    """Measure the engine without a server: frames with the codec and codes only, and the first audio."""
    from oscine.bench.record import check_writable, script_result, write_result
    from oscine.model.device import choose_device  # here, not above: torch takes seconds that `--help` should not
    from oscine.model_bench.measure import Plan, measure
    from oscine.runner.memory_budget import DoesNotFitError

    if out is not None:
        check_writable(out)
    default = "1,2,4,8" if choose_device(device).type == "cpu" else "1,8,32,64,128"
    plan = Plan(_numbers(rows or default), frames, context, probes)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(model), total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        try:
            figures = measure(model, plan, device=device, dtype=dtype.value, progress=show)
        except DoesNotFitError as error:
            most = max(plan.rows)
            raise ConfigError(f"--rows {most} is more than fits: {error.sums}; ask for fewer rows") from error
    # Where the folder lies is this machine's business.
    words = [Path(word).name if word == model and Path(word).is_dir() else word for word in sys.argv[1:]]
    result = script_result(name or Path(model).name, words, figures, "torch", program="oscine")
    if out is not None:
        write_result(out, result)
    Console(width=None if sys.stdout.isatty() else 160).print(result_table(result["name"], figures))
    for line in facts(figures):
        print(line)


def _numbers(listed: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in listed.split(",") if word.strip()}))
    except ValueError:
        raise RequestError(
            f"--rows takes whole numbers with commas between them, such as 1,8,32; got {listed!r}", "rows"
        ) from None


# Each cell from the row with the codec and the row of codes only.
COLUMNS: dict[str, Any] = {
    "frame": lambda whole, codes: pair(whole["frame_ms"]),
    "on the device": lambda whole, codes: pair(whole["device_ms"]),
    "codes only": lambda whole, codes: pair(codes["frame_ms"]),
    "x real time, each": lambda whole, codes: f"{whole['x_real_time_each']:.1f}",
    "x real time, all": lambda whole, codes: f"{whole['x_real_time']:.0f}",
    "all, codes only": lambda whole, codes: f"{codes['x_real_time']:.0f}",
    "first audio": lambda whole, codes: pair(whole["first_audio_ms"]),
    "first codes": lambda whole, codes: pair(codes["first_audio_ms"]),
}


def pair(figure: Row | None) -> str:
    """Median and 95th percentile, in three digits."""
    return "-" if figure is None else " / ".join(_number(figure[share]) for share in ("p50", "p95"))


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def result_table(name: str, figures: Row) -> Table:
    title = Text(f"{name} (times: p50 / p95 ms)", "table.title")  # a Text: no name is taken for markup
    table = Table(title=title, box=None, header_style="bold", pad_edge=False)
    for column in ("streams", *COLUMNS):
        table.add_column(column, justify="right")
    whole, codes = figures["with_codec"]["rows"], figures["codes_only"]["rows"]
    for count in whole:
        table.add_row(count, *(cell(whole[count], codes[count]) for cell in COLUMNS.values()))
    return table


def facts(figures: Row) -> list[str]:
    """What a reader needs beside the table, a sentence each."""
    whole, codes = figures["with_codec"], figures["codes_only"]
    first, last = next(iter(whole["rows"].values()))["positions"]
    threads = f"{figures['threads']} thread{'' if figures['threads'] == 1 else 's'}"
    how = "kernels" if figures["kernels"] else f"plain PyTorch, {threads}"
    return [
        f"{figures['dtype']} on {figures['device']} ({how}); positions {first} to {last}, a prompt of "
        f"{figures['prompt_rows']} rows. Loaded in {figures['loaded_s']:.1f} s, captured in "
        f"{whole['captured_s']:.1f} s.",
        f"Memory: {_held(whole)}; codes only: {_held(codes)}. {figures['budget']}.",
    ]


def _held(way: Row) -> str:
    reserved = way.get("memory_reserved_bytes")
    said = f"{way['memory_bytes'] / _MIB:.0f} MiB"
    return said if reserved is None else f"{said}, {reserved / _MIB:.0f} MiB reserved"
