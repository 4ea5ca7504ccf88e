"""Measures the engine without a server: frames with the codec and codes only, and the first audio.

python -m benchmarks.model [CHECKPOINT] [--rows 1,8,32] [--out docs/results/bench-model-demo.json]
python -m benchmarks.model --size 1b7 --out docs/results/bench-model-1b7.json      random weights of a published size
"""

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

from benchmarks.report_sections import model_cells, model_facts
from benchmarks.report_table import SIZES
from benchmarks.results import command_words
from oscine.errors import ConfigError, OscineError, RequestError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(stderr=True)  # standard output is for results

Row = dict[str, Any]


class SizeChoice(StrEnum):
    large = "1b7"
    small = "0b6"


class DtypeChoice(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


@app.command()
def bench_model(
    model: Annotated[str, typer.Argument(help="Folder, hub id, or 'demo'")] = "demo",
    rows: Annotated[
        str | None, typer.Option(help="Numbers of streams, such as 1,8,32 [default: 1,8,32,64,128; on a CPU 1,2,4,8]")
    ] = None,
    frames: Annotated[int, typer.Option(help="Frames of 80 ms timed at each number of streams")] = 56,
    context: Annotated[int, typer.Option(help="Position of each stream when timing starts")] = 64,
    probes: Annotated[int, typer.Option(help="Requests that measure first audio, at each number of streams")] = 20,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[DtypeChoice, typer.Option(help="auto: bfloat16 on a GPU, float32 elsewhere")] = DtypeChoice.auto,
    size: Annotated[SizeChoice | None, typer.Option(help="Random weights of this size instead of a checkpoint")] = None,
    scratch: Annotated[Path, typer.Option(help="Where random weights are written")] = Path(".cache/gpu"),
    name: Annotated[str | None, typer.Option(help="Name of this result in tables")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the result")] = None,
) -> None:
    """Measure the engine without a server: frames with the codec and codes only, and the first audio."""
    from benchmarks.loaded_checkpoint import full_checkpoint
    from benchmarks.measure_model import MeasurementPlan, measure
    from oscine.model.device import choose_device  # not at the top: `--help` should not wait for torch
    from oscine.runner.memory_budget import DoesNotFitError
    from oscine_bench.record import check_writable, script_result, write_result

    if out is not None:
        check_writable(out)
    if size is not None:
        model, name = str(full_checkpoint(scratch, size.value)), name or SIZES[size.value]
    default = "1,2,4,8" if choose_device(device).type == "cpu" else "1,8,32,64,128"
    plan = MeasurementPlan(_numbers(rows or default), frames, context, probes)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(model), total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        try:
            figures = measure(model, plan, device=device, dtype=dtype.value, progress=show)
        except DoesNotFitError as error:
            raise ConfigError(f"--rows {max(plan.rows)} does not fit: {error.sums}; use fewer rows") from error
    # The result names the checkpoint, not the folder that holds it on this machine.
    words = [Path(word).name if word == model and Path(word).is_dir() else word for word in command_words()]
    result = script_result(name or Path(model).name, words, figures, "torch")
    if out is not None:
        write_result(out, result)
    Console(width=None if sys.stdout.isatty() else 160).print(result_table(result["name"], figures))
    for line in model_facts(figures):
        print(line)


def _numbers(listed: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in listed.split(",") if word.strip()}))
    except ValueError:
        raise RequestError(f"--rows takes integers such as 1,8,32; got {listed!r}", "rows") from None


def result_table(name: str, figures: Row) -> Table:
    title = Text(f"{name} (times: p50 / p95 ms)", "table.title")  # a Text: names are not parsed as markup
    shown = Table(title=title, box=None, header_style="bold", pad_edge=False)
    head, rows = model_cells(figures)
    for column in head:
        shown.add_column(column, justify="right")
    for row in rows:
        shown.add_row(*row)
    return shown


def main() -> None:
    try:
        app()
    except OscineError as error:
        console.print(Text.assemble(("error:", "bold red"), " ", str(error)), soft_wrap=True)
        sys.exit(2 if isinstance(error, RequestError) else 1)


if __name__ == "__main__":
    main()
