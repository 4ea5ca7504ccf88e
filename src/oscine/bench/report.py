"""Results become tables: for the terminal, as Markdown, and as one HTML page with its plots inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from oscine.bench.plots import Series, line_plot, timeline_plot
from oscine.bench.record import Result

Row = dict[str, Any]


def load_name(row: Row) -> str:
    load = row["load"]
    return f"closed loop, {load['value']:g}" if load["kind"] == "closed" else f"open loop, {load['value']:g}/s"


def _pair(figure: str) -> Callable[[Row], str]:
    def said(row: Row) -> str:
        spread = row[figure]
        return "-" if spread is None else f"{_number(spread['p50'])} / {_number(spread['p95'])}"

    return said


def _number(value: float) -> str:
    """Three digits, and never 1e+03."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def underruns(row: Row) -> str:
    said = row["underruns"]
    if not said["applicable"]:
        return "n/a"
    if not said["requests"]:
        return "0"
    worst = f"{said['share_over_100_ms']:.1%} > 100 ms, worst {said['worst_deficit_ms']:.0f} ms"
    return f"{said['requests']} of {said['applicable']}, {worst}"


def failures(row: Row) -> str:
    said = [f"{kind} {failure['count']}" for kind, failure in row["failures"].items()]
    if row["inaudible"]:
        said.append(f"inaudible {row['inaudible']}")
    return ", ".join(said) or "0"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "load": load_name,
    "requests": lambda row: str(row["requests"]),
    "audio, mean s": lambda row: "-" if row["audio_s"] is None else f"{row['audio_s']['mean']:.2f}",
    "x real time": lambda row: _number(row["x_real_time"]),
    "requests/s": lambda row: _number(row["requests_per_s"]),
    "first audio p50 / p95 ms": _pair("first_audio_ms"),
    "audible p50 / p95 ms": _pair("audible_ms"),
    "E2E p50 / p95 ms": _pair("e2e_ms"),
    "underruns": underruns,
    "failures": failures,
}
# Side by side, one small table each.
COMPARED = (
    "x real time",
    "requests/s",
    "first audio p50 / p95 ms",
    "audible p50 / p95 ms",
    "E2E p50 / p95 ms",
    "underruns",
)


def rows(result: Result) -> list[Row]:
    return list(result["figures"]["loads"])


def origin(result: Result) -> str:
    figures, made = result["figures"], result["versions"]
    asked = figures["target"]
    about = f"{asked['preset']} over {asked['transport']}, texts: {figures['workload']['name']}"
    return (
        f"{result['machine']}; {about}; oscine {made['oscine']}, Python {made['python']}, commit {result['commit']}, "
        f"{result['date']}: `{result['command']}`"
    )


def doubts(row: Row) -> list[str]:
    """Where the client itself may have distorted a row."""
    said = []
    lag = row["client"]["loop_lag_ms"]
    if lag is not None and lag["p99"] > 5:
        said.append(f"{load_name(row)}: the client came {lag['p99']:.1f} ms late at p99; times may be so much too long")
    starved = row["client"]["starved_share"]
    if starved is not None and starved > 0.1:
        said.append(
            f"{load_name(row)}: the client waited {starved:.0%} of the time for a core; measure on a quieter machine"
        )
    sent = row["send_lag_ms"]
    if row["load"]["kind"] == "open" and sent is not None and sent["p99"] > 20:
        said.append(f"{load_name(row)}: requests were sent {sent['p99']:.1f} ms late at p99: no true open loop")
    return said


def found(result: Result) -> str:
    """The answer of a search, in words; empty for a run."""
    search = result["figures"].get("search")
    if search is None:
        return ""
    limits = search["limits"]
    what = limits["figure"].removesuffix("_ms").replace("_", " ")
    underrun_ms = limits["underrun_ms"]
    gap = "" if underrun_ms is None else f"no underrun above {underrun_ms:g} ms, "
    held = f"{what} p95 <= {limits['p95_ms']:g} ms, {gap}no failure"
    best = (
        "no rate that was tried holds"
        if search["rate_per_s"] is None
        else f"{search['rate_per_s']:.3g} requests/s hold"
    )
    return f"{best}: {held}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    parts = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in parts)


def _loads(results: Sequence[Result]) -> list[tuple[str, float]]:
    seen = {(row["load"]["kind"], row["load"]["value"]) for result in results for row in rows(result)}
    return sorted(seen)


def compared(results: Sequence[Result], column: str) -> tuple[list[str], list[list[str]]]:
    """One figure, loads down, results across."""
    lines = []
    for load in _loads(results):
        cells = []
        for result in results:
            row = next((row for row in rows(result) if (row["load"]["kind"], row["load"]["value"]) == load), None)
            cells.append("-" if row is None else COLUMNS[column](row))
        lines.append([load_name({"load": {"kind": load[0], "value": load[1]}}), *cells])
    return ["load", *(result["name"] for result in results)], lines


def markdown(results: Sequence[Result]) -> str:
    parts: list[str] = []
    if len(results) > 1:
        for column in COMPARED:
            parts += [f"### {column}", "", _table(*compared(results, column)), ""]
    for result in results:
        parts += [f"### {result['name']}", "", origin(result), ""]
        parts += [found(result), ""] if found(result) else []
        parts += [_table(list(COLUMNS), [[cell(row) for cell in COLUMNS.values()] for row in rows(result)]), ""]
        parts += [f"* {doubt}" for row in rows(result) for doubt in doubts(row)]
    return "\n".join(parts).rstrip() + "\n"


def _series(results: Sequence[Result], kind: str, value: Callable[[Row], float | None]) -> list[Series]:
    series = []
    for result in results:
        measured = [(r["load"]["value"], value(r)) for r in rows(result) if r["load"]["kind"] == kind]
        points = tuple(sorted((x, y) for x, y in measured if y is not None))
        if points:
            series.append(Series(result["name"], points))
    return series


def _p95(figure: str) -> Callable[[Row], float | None]:
    return lambda row: row[figure] and row[figure]["p95"]


def plots(results: Sequence[Result]) -> dict[str, str]:
    """SVG by name: those for which there are figures."""
    drawn: dict[str, str] = {}
    rate, callers = "requests per second", "callers"
    for name, title, x_name, y_name, series in (
        ("first-audio", "First audio, p95, open loop", rate, "ms", _series(results, "open", _p95("first_audio_ms"))),
        ("audible", "Audible first audio, p95, open loop", rate, "ms", _series(results, "open", _p95("audible_ms"))),
        (
            "x-real-time",
            "x real time, all callers together",
            callers,
            "x",
            _series(results, "closed", lambda row: row["x_real_time"]),
        ),
        (
            "first-audio-closed",
            "First audio, p95, closed loop",
            callers,
            "ms",
            _series(results, "closed", _p95("first_audio_ms")),
        ),
    ):
        if series:
            drawn[name] = line_plot(title, x_name, y_name, series)
    for number, result in enumerate(results, start=1):
        for row in rows(result):
            for which, example in row["timelines"].items():
                title = f"{result['name']}: {load_name(row)}, the {which} request"
                drawn[f"timeline-{number}-{row['load']['kind']}-{row['load']['value']:g}-{which}"] = timeline_plot(
                    title, example
                )
    return drawn


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root{{color-scheme:light}}body{{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;
color:#222}}table{{border-collapse:collapse;margin:.6rem 0 1.6rem;font-variant-numeric:tabular-nums}}
th,td{{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}}
th:first-child,td:first-child{{text-align:left}}.wide{{overflow-x:auto}}svg{{width:100%;max-width:40rem}}
.plots{{display:grid;grid-template-columns:repeat(auto-fit,minmax(28rem,1fr));gap:1rem}}code{{font-size:.85em}}
.origin{{color:#555}}.doubt{{color:#a33}}</style></head><body>
{body}
</body></html>
"""


def _html_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def html(results: Sequence[Result]) -> str:
    """One page that needs no network and no other file."""
    title = "oscine bench: " + ", ".join(result["name"] for result in results)
    drawn = plots(results)
    main = [svg for name, svg in drawn.items() if not name.startswith("timeline-")]
    body = [f"<h1>{escape(title)}</h1>", '<div class="plots">', *main, "</div>"]
    if len(results) > 1:
        for column in COMPARED:
            body += [f"<h3>{escape(column)}</h3>", _html_table(*compared(results, column))]
    for number, result in enumerate(results, start=1):
        before, _, command = origin(result).rpartition(": `")
        body.append(f"<h2>{escape(result['name'])}</h2>")
        body.append(f'<p class="origin">{escape(before)}<br><code>{escape(command[:-1])}</code></p>')
        body += [f"<p><strong>{escape(found(result))}</strong></p>"] if found(result) else []
        body.append(_html_table(list(COLUMNS), [[cell(row) for cell in COLUMNS.values()] for row in rows(result)]))
        body += [f'<p class="doubt">{escape(doubt)}</p>' for row in rows(result) for doubt in doubts(row)]
        own = [svg for name, svg in drawn.items() if name.startswith(f"timeline-{number}-")]
        body += ["<details><summary>Timelines: sound received and played</summary>", '<div class="plots">']
        body += [*own, "</div></details>"]
    return _PAGE.format(title=escape(title), body="\n".join(body))
