"""`oscine bench run | search | report`: options become a Bench, figures become files."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oscine.bench.options import INTERRUPTED, Asked, Lengths, Url, expanded
from oscine.types import OscineError, RequestError

if TYPE_CHECKING:
    from oscine.bench.load import Load
    from oscine.bench.record import Result
    from oscine.bench.session import Bench

bench_app = typer.Typer(
    no_args_is_help=True, help="Measure a speech server over the wire, this one or another's; or the engine alone."
)
console = Console(stderr=True)  # standard output is for results
_TERMINAL_COLUMNS = 120  # a narrower one gets its loads side by side, figures below each other


class Figure(StrEnum):
    first_audio = "first-audio"
    audible = "audible"
    e2e = "e2e"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How it is measured, and what is kept of it."""

    lengths: Lengths = "medium"
    duration: Annotated[float, typer.Option("--duration", "-d", help="Seconds measured at each load")] = 30.0
    requests: Annotated[int | None, typer.Option("--requests", "-n", help="So many requests instead of a duration")] = (
        None
    )
    warmup: Annotated[float, typer.Option(help="Seconds at each load before anything counts")] = 5.0
    frames: Annotated[
        int | None, typer.Option(help="Fixed length, for random weights: frames of 80 ms, whatever the text")
    ] = None
    words_ms: Annotated[
        float | None, typer.Option(help="oscine-ws: a word every so many milliseconds; else the whole text")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the result")] = None
    records: Annotated[Path | None, typer.Option(help="Every request as a line of JSON")] = None


@bench_app.command()
@expanded
def run(
    url: Url,
    asked: Asked,
    measured: Measured,
    concurrency: Annotated[str, typer.Option("--concurrency", "-c", help="Closed loop: callers, such as 1,8,32")] = "",
    rate: Annotated[str, typer.Option("--rate", "-r", help="Open loop: requests per second, such as 1,10,50")] = "",
) -> None:
    """Measure a server at given loads: each a closed loop of callers, or an open loop of arrivals."""
    from oscine.bench.session import run_async

    loads = _loads(concurrency, rate)
    bench = _bench(url, asked, measured)
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        _save(bench, rows, asked, measured.out)  # after every load: an interrupted run keeps what it has

    bench.on_row = keep
    with _showing_what_came(rows, measured.out, lambda: _save(bench, rows, asked, measured.out)):
        run_async(bench.run(loads))
    if not all(row["succeeded"] for row in rows):
        raise typer.Exit(1)


@bench_app.command()
@expanded
def search(
    url: Url,
    asked: Asked,
    measured: Measured,
    p95_ms: Annotated[float, typer.Option(help="The figure's 95th percentile must not be above this")] = 50.0,
    figure: Annotated[Figure, typer.Option(help="Which time is limited")] = Figure.first_audio,
    underrun_ms: Annotated[
        float, typer.Option(help="No listener may be later than this; 0: no gap; inf: not asked")
    ] = 0.0,
    first: Annotated[float, typer.Option(help="The first rate that is tried")] = 1.0,
    most: Annotated[float, typer.Option(help="The highest that is tried")] = 500.0,
    resolution: Annotated[float, typer.Option(help="How near to the lowest rate that fails: 0.05 is 5 %")] = 0.05,
) -> None:
    """Find the highest rate of arrivals at which nobody hears a gap and the first sound comes in time."""
    from oscine.bench.load import Limits
    from oscine.bench.session import run_async

    if not (0 < first <= most and resolution > 0):
        raise RequestError(
            f"--first {first:g} must be above 0 and at most --most {most:g}, --resolution above 0", "first"
        )
    limits = Limits(f"{figure.value.replace('-', '_')}_ms", p95_ms, underrun_ms)
    bench = _bench(url, asked, measured)
    rows: list[dict[str, Any]] = []

    def save() -> Result:
        held = {"figure": limits.figure, "p95_ms": _finite(p95_ms), "underrun_ms": _finite(underrun_ms)}
        best = max((row["load"]["value"] for row in rows if not row["limits_broken"]), default=None)
        tried = sorted(rows, key=lambda row: row["load"]["value"])
        return _save(bench, tried, asked, measured.out, search={"rate_per_s": best, "limits": held})

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        save()
        console.print(_told(row, row["limits_broken"]), soft_wrap=True, highlight=False)

    bench.on_row = keep
    with _showing_what_came(rows, measured.out, save):
        best, _ = run_async(bench.search(limits, first=first, most=most, resolution=resolution))
    if best is None:
        raise typer.Exit(1)


@bench_app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="JSON files of `run` and `search`, side by side")],
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one page, tables and plots, that needs nothing else")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write the plots as SVG files into this folder")] = None,
) -> None:
    """Lay results side by side: Markdown on standard output, or as files."""
    from oscine.bench import report as pages
    from oscine.bench.record import read_result

    read = [read_result(path) for path in results]
    if markdown is not None:
        _write(markdown, pages.markdown(read))
    if html is not None:
        _write(html, pages.html(read))
    if plots is not None:
        for plot, svg in pages.plots(read).items():
            _write(plots / f"{plot}.svg", svg + "\n")
    if markdown is None and html is None and plots is None:
        print(pages.markdown(read), end="")


def _loads(concurrency: str, rate: str) -> list[Load]:
    from oscine.bench.load import Load

    if not concurrency and not rate:
        concurrency = "1,4,16"
    closed = [Load("closed", value) for value in _numbers(concurrency, "concurrency")]
    return closed + [Load("open", value) for value in _numbers(rate, "rate")]


def _numbers(listed: str, option: str) -> list[float]:
    try:
        return [float(word) for word in listed.split(",")] if listed else []
    except ValueError:
        raise RequestError(
            f"--{option} takes numbers with commas between them, such as 1,8,32; got {listed!r}", option
        ) from None


def _bench(url: str, asked: Asked, measured: Measured) -> Bench:
    from oscine.bench.load import Span
    from oscine.bench.record import check_writable
    from oscine.bench.session import Bench

    if measured.out is not None:
        check_writable(measured.out)
    target, words_ms = asked.at(url, measured.frames), measured.words_ms
    if words_ms is not None and (target.preset.transport != "websocket" or not 0 < words_ms < math.inf):
        raise RequestError("--words-ms is a time above 0 and goes with --target oscine-ws", "words_ms")
    return Bench(
        target,
        asked.workload(measured.lengths),
        Span(measured.duration, measured.requests, measured.warmup),
        timeout_s=asked.timeout,
        word_interval_s=None if words_ms is None else words_ms / 1000,
        records=measured.records,
    )


def _save(
    bench: Bench, rows: list[dict[str, Any]], asked: Asked, out: Path | None, search: dict[str, Any] | None = None
) -> Result:
    from oscine.bench.record import make_result, write_result

    figures = bench.figures(rows) | ({"search": search} if search else {})
    result = make_result(asked.name or asked.target, sys.argv[1:], figures, server_machine=asked.machine)
    if out is not None:
        write_result(out, result)
    return result


@contextmanager
def _showing_what_came(rows: list[dict[str, Any]], out: Path | None, save: Callable[[], Result]) -> Iterator[None]:
    """However it ends: what was measured is saved and shown."""
    try:
        yield
    except KeyboardInterrupt:
        if rows:
            _show(save())
        kept = f", kept in {str(out)!r}" if rows and out else ""
        console.print(f"interrupted; loads that were measured: {len(rows)}{kept}", markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except OscineError:
        if rows:
            _show(save())
        raise
    _show(save())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _told(row: dict[str, Any], broken: list[str]) -> str:
    from oscine.bench.report import load_name

    return f"{load_name(row)}: {'holds' if not broken else '; '.join(broken)}"


def _show(result: Result) -> None:
    from oscine.bench.report import COLUMNS, doubts, found, load_name, rows

    lines = [[column.replace(" p50 / p95 ms", "") for column in COLUMNS]]
    lines += [[cell(row) for cell in COLUMNS.values()] for row in rows(result)]
    terminal = Console(width=None if sys.stdout.isatty() else 160)
    if terminal.width < _TERMINAL_COLUMNS:
        lines = [list(column) for column in zip(*lines, strict=True)]
    title = Text(f"{result['name']} (times: p50 / p95 ms)", "table.title")  # a Text: no name is taken for markup
    table = Table(title=title, box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(lines[0]):
        table.add_column(column, justify="left" if index == 0 else "right")
    for line in lines[1:]:
        table.add_row(*line)
    terminal.print(table)
    for row in rows(result):
        for kind, failure in row["failures"].items():
            told = f"{load_name(row)}: {kind}, {failure['count']} times, first: {failure['first']}"
            console.print(told, markup=False, soft_wrap=True)
        for doubt in doubts(row):
            console.print(doubt, style="yellow", soft_wrap=True)
    if found(result):
        print(found(result))


def _write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OscineError(f"{str(path)!r} cannot be written: {error}") from None
