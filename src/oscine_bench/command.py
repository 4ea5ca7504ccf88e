"""`oscine bench run | search | report`: measures a speech server over the network."""

from __future__ import annotations

import math
import sys
import time
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

from oscine.errors import OscineError, RequestError
from oscine_bench.target_options import INTERRUPTED, Lengths, TargetOptions, Url, with_option_groups

if TYPE_CHECKING:
    from oscine_bench.benchmark import Bench
    from oscine_bench.load import OfferedLoad
    from oscine_bench.record import Result

bench_app = typer.Typer(no_args_is_help=True, help="Measure a speech server over the network, Oscine or another.")
console = Console(stderr=True)  # standard output is for results
_WIDE_COLUMNS = 120  # a narrower terminal gets one column per load instead of one row

Row = dict[str, Any]


class LatencyFigure(StrEnum):
    first_audio = "first-audio"
    audible = "audible"
    e2e = "e2e"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How to measure, and where to write."""

    lengths: Lengths = "medium"
    duration: Annotated[float, typer.Option("--duration", "-d", help="Seconds to measure at each load")] = 30.0
    requests: Annotated[int | None, typer.Option("--requests", "-n", help="Requests to measure, not seconds")] = None
    warmup: Annotated[float, typer.Option(help="Seconds of warm-up at each load")] = 5.0
    frames: Annotated[
        int | None, typer.Option(help="Fixed length in frames of 80 ms, whatever the text (for random weights)")
    ] = None
    words_ms: Annotated[
        float | None, typer.Option(help="oscine-ws: send a word every so many ms instead of the whole text")
    ] = None
    price_per_hour: Annotated[
        float | None, typer.Option(help="Of the server's machine, in any currency: also says what speech costs")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file for the result")] = None
    records: Annotated[Path | None, typer.Option(help="File for one JSON line per request")] = None


@bench_app.command()
@with_option_groups
def run(
    url: Url,
    server: TargetOptions,
    options: RunOptions,
    concurrency: Annotated[str, typer.Option("--concurrency", "-c", help="Closed loops: callers, such as 1,8,32")] = "",
    rate: Annotated[str, typer.Option("--rate", "-r", help="Open loops: requests per second, such as 1,10,50")] = "",
) -> None:
    """Measure a server at given loads: closed loops of callers, and open loops of arrivals."""
    from oscine_bench.benchmark import run_async

    loads = _loads(concurrency, rate)
    bench = _bench(url, server, options)
    rows: list[Row] = []

    def keep(row: Row) -> None:
        rows.append(row)
        _save(bench, rows, server, options)  # after every load: an interrupted run keeps its rows

    bench.on_row = keep
    with _shown_at_the_end(rows, options.out, lambda: _save(bench, rows, server, options)):
        run_async(bench.run(loads))
    if not all(row["succeeded"] for row in rows):
        raise typer.Exit(1)


@bench_app.command()
@with_option_groups
def search(
    url: Url,
    server: TargetOptions,
    options: RunOptions,
    p95_ms: Annotated[float, typer.Option(help="Highest p95 of the figure; inf: no limit")] = 50.0,
    figure: Annotated[LatencyFigure, typer.Option(help="Which time is limited")] = LatencyFigure.first_audio,
    underrun_ms: Annotated[
        float, typer.Option(help="Largest playback deficit of any request; 0: no gap; inf: no limit")
    ] = 0.0,
    first: Annotated[
        float | None, typer.Option(help="First rate to try; default: from the capacity that the server reports, or 1")
    ] = None,
    max_rate: Annotated[float, typer.Option(help="Highest rate to try")] = 500.0,
    resolution: Annotated[float, typer.Option(help="Distance to the lowest rate that fails; 0.05 is 5 %")] = 0.05,
    time_limit_s: Annotated[
        float, typer.Option(help="The search ends within this time, with the best rate so far; inf: when it is done")
    ] = 300.0,
) -> None:
    """Find the highest request rate at which first audio is fast enough and playback has no gaps."""
    from oscine_bench.benchmark import run_async
    from oscine_bench.search import SearchLimits

    for option, value in (("max_rate", max_rate), ("resolution", resolution), ("time_limit_s", time_limit_s)):
        if not value > 0:
            raise RequestError(f"--{option.replace('_', '-')} must be above 0, got {value:g}", option)
    if first is not None and not 0 < first <= max_rate:
        raise RequestError(f"--first must be above 0 and at most --max-rate {max_rate:g}, got {first:g}", "first")
    limits = SearchLimits(f"{figure.value.replace('-', '_')}_ms", p95_ms, underrun_ms)
    bench = _bench(url, server, options)
    rows: list[Row] = []
    complete = False

    def save() -> Result:
        stated = {"figure": limits.figure, "p95_ms": _finite(p95_ms), "underrun_ms": _finite(underrun_ms)}
        best = max((row["load"]["value"] for row in rows if not row["limits_broken"]), default=None)
        tried = sorted(rows, key=lambda row: row["load"]["value"])
        found = {"rate_per_s": best, "limits": stated, "complete": complete}
        return _save(bench, tried, server, options, search=found)

    def keep(row: Row) -> None:
        from oscine_bench.report import load_name

        rows.append(row)
        save()
        outcome = "; ".join(row["limits_broken"]) or "holds"
        say(f"{load_name(row)}: {outcome} (after {time.monotonic() - begun_s:.0f} s)")

    def say(message: str) -> None:
        console.print(message, soft_wrap=True, highlight=False, markup=False)

    begun_s = time.monotonic()
    bench.on_row, bench.on_step = keep, say
    with _shown_at_the_end(rows, options.out, save):
        search = bench.search(limits, first=first, max_rate=max_rate, resolution=resolution, time_limit_s=time_limit_s)
        found = run_async(search)
        complete = found.complete
    if found.rate_per_s is None:
        raise typer.Exit(1)


@bench_app.command()
def report(
    results: Annotated[list[Path], typer.Argument(help="JSON files of `run` and `search` to compare")],
    markdown: Annotated[Path | None, typer.Option(help="Write the tables to this file")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page with tables and charts")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write the charts as SVG files into this folder")] = None,
) -> None:
    """Compare results: Markdown on standard output, or files."""
    from oscine_bench import report as pages
    from oscine_bench.record import read_result

    read = [read_result(path) for path in results]
    if markdown is not None:
        _write(markdown, pages.markdown(read))
    if html is not None:
        _write(html, pages.html(read))
    if plots is not None:
        for name, svg in pages.plots(read).items():
            _write(plots / f"{name}.svg", svg + "\n")
    if markdown is None and html is None and plots is None:
        print(pages.markdown(read), end="")


def _loads(concurrency: str, rate: str) -> list[OfferedLoad]:
    from oscine_bench.load import OfferedLoad

    if not concurrency and not rate:
        concurrency = "1,4,16"
    closed = [OfferedLoad("closed", value) for value in _numbers(concurrency, "concurrency")]
    return closed + [OfferedLoad("open", value) for value in _numbers(rate, "rate")]


def _numbers(listed: str, option: str) -> list[float]:
    try:
        return [float(word) for word in listed.split(",")] if listed else []
    except ValueError:
        raise RequestError(f"--{option} takes numbers such as 1,8,32; got {listed!r}", option) from None


def _bench(url: str, server: TargetOptions, options: RunOptions) -> Bench:
    from oscine_bench.benchmark import Bench
    from oscine_bench.load import RunLength
    from oscine_bench.record import check_writable

    if options.out is not None:
        check_writable(options.out)
    price = options.price_per_hour
    if price is not None and not 0 < price < math.inf:
        raise RequestError(f"--price-per-hour must be above 0, got {price:g}", "price_per_hour")
    target, words_ms = server.make_target(url, options.frames), options.words_ms
    if words_ms is not None and (target.preset.transport != "websocket" or not 0 < words_ms < math.inf):
        raise RequestError("--words-ms must be above 0 and needs --target oscine-ws", "words_ms")
    return Bench(
        target,
        server.workload(options.lengths),
        RunLength(options.duration, options.requests, options.warmup),
        timeout_s=server.timeout,
        word_interval_s=None if words_ms is None else words_ms / 1000,
        records=options.records,
    )


def _save(
    bench: Bench, rows: list[Row], server: TargetOptions, options: RunOptions, search: Row | None = None
) -> Result:
    from oscine_bench.record import make_result, write_result

    figures = bench.figures(rows) | ({"search": search} if search else {})
    if options.price_per_hour is not None:
        figures["price_per_hour"] = options.price_per_hour
    result = make_result(server.name or bench.target.preset_name, sys.argv[1:], figures, server_machine=server.machine)
    if options.out is not None:
        write_result(options.out, result)
    return result


@contextmanager
def _shown_at_the_end(rows: list[Row], out: Path | None, save: Callable[[], Result]) -> Iterator[None]:
    """Saves and shows the rows, also after an interrupt or an error."""
    try:
        yield
    except KeyboardInterrupt:
        if rows:
            _show(save())
        kept = f", saved in {str(out)!r}" if rows and out else ""
        console.print(f"interrupted; loads measured: {len(rows)}{kept}", markup=False, soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None
    except OscineError:
        if rows:
            _show(save())
        raise
    _show(save())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _show(result: Result) -> None:
    from oscine_bench.report import cost, failure_messages, own_table, rows, search_outcome, warnings

    head, lines = own_table(result)
    lines = [[column.replace(" p50 / p95 ms", "") for column in head], *lines]
    terminal = Console(width=None if sys.stdout.isatty() else 160)
    if terminal.width < _WIDE_COLUMNS:
        lines = [list(column) for column in zip(*lines, strict=True)]
    title = Text(f"{result['name']} (times: p50 / p95 ms)", "table.title")  # a Text: names are not parsed as markup
    table = Table(title=title, box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(lines[0]):
        table.add_column(column, justify="left" if index == 0 else "right")
    for line in lines[1:]:
        table.add_row(*line)
    terminal.print(table)
    for row in rows(result):
        for about, message in failure_messages(row):
            console.print(f"{about}: {message}", markup=False, soft_wrap=True)
        for warning in warnings(row):
            console.print(warning, style="yellow", soft_wrap=True)
    for outcome in filter(None, (search_outcome(result), cost(result))):
        print(outcome)


def _write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise OscineError(f"cannot write {str(path)!r}: {error}") from None
