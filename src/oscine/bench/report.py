"""Results become tables: for the terminal, as Markdown, and as one HTML page with its plots inside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from oscine.bench.metrics import MIN_FOR_P95
from oscine.bench.plots import Series, line_plot, timeline_plot
from oscine.bench.record import Result

Row = dict[str, Any]
_LONGEST_MESSAGE = 200


def load_name(row: Row) -> str:
    load = row["load"]
    name = f"closed loop, {load['value']:g}" if load["kind"] == "closed" else f"open loop, {_number(load['value'])}/s"
    return name if load.get("turn", 1) == 1 else f"{name} ({load['turn']})"


def _pair(figure: str) -> Callable[[Row], str]:
    def said(row: Row) -> str:
        spread = row[figure]
        return "-" if spread is None else f"{_number(spread['p50'])} / {_number(spread['p95'])}"

    return said


def _number(value: float | None) -> str:
    """Three digits, and never 1e+03."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _sent(row: Row) -> str:
    """What became of an open loop's rate: chance has its part in how many come within a window."""
    # A window of so many requests lasts until the last answer: it says little about how fast they were sent.
    if row["load"]["kind"] != "open" or row.get("counted") or not row.get("window_s"):
        return "-"
    held_back = row["failures"].get("not_sent", {"count": 0})["count"]
    return _number((row["requests"] - held_back) / row["window_s"])


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
    "sent/s": _sent,
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
    "audio, mean s",
    "x real time",
    "requests/s",
    "first audio p50 / p95 ms",
    "audible p50 / p95 ms",
    "E2E p50 / p95 ms",
    "underruns",
    "failures",
)


def rows(result: Result) -> list[Row]:
    """With what only the whole result knows: which turn a load is that was asked for more than once, and whether its
    requests were counted off."""
    figures, turns = result["figures"], Counter[tuple[str, float]]()
    counted = "requests" in figures.get("span", {})
    told = []
    for row in figures["loads"]:
        turns[_load(row)] += 1
        told.append({**row, "load": {**row["load"], "turn": turns[_load(row)]}, "counted": counted})
    return told


def _load(row: Row) -> tuple[str, float]:
    return row["load"]["kind"], row["load"]["value"]


def told_apart(results: Sequence[Result]) -> list[Result]:
    """Where names are equal, the file's name stands behind them; where that is equal too, a number."""
    by_file = _marked(results, [result.get("file") for result in results])
    return _marked(by_file, [str(number) for number in range(1, len(results) + 1)])


def _marked(results: Sequence[Result], marks: Sequence[str | None]) -> list[Result]:
    counts = Counter(result["name"] for result in results)
    return [
        {**result, "name": f"{result['name']} ({mark})"} if mark and counts[result["name"]] > 1 else result
        for result, mark in zip(results, marks, strict=True)
    ]


def about(result: Result) -> str:
    """Versions and commit are those of the client: what a server is made of, it does not tell."""
    figures, made = result["figures"], result["versions"]
    asked = figures["target"]
    return (
        f"{result['machine']}; {asked['preset']} over {asked['transport']}, texts: {figures['workload']['name']}; "
        f"measured with oscine {made['oscine']}, Python {made['python']}, commit {result['commit']}, {result['date']}"
    )


def _asked(result: Result) -> dict[str, Any]:
    """What should be equal where figures are compared."""
    figures = result["figures"]
    target, workload, frames = figures["target"], figures["workload"], figures.get("frames")
    fields = dict(target.get("fields", {}))
    span = figures.get("span", {})
    asked = {
        "machine": result["machine"],
        "target": f"{target['preset']} over {target['transport']}",
        "workload": workload["name"],
        "texts": workload.get("texts"),
        "seed": workload.get("seed"),
        "frames": frames,
        "format": fields.pop("response_format", None),
        "span": ", ".join(f"{name} {value}" for name, value in span.items()) or None,
        "word interval, s": target.get("word_interval_s"),
    }
    if frames is not None:  # says the same; servers count them differently
        fields.pop("max_new_tokens", None)
    return asked | {name: value for name, value in fields.items() if name not in asked}


def differences(results: Sequence[Result]) -> str:
    """In one line what was not asked of all alike; empty where everything was."""
    each = [_asked(result) for result in results]
    said = []
    for name in dict.fromkeys(name for asked in each for name in asked):
        values = [asked.get(name) for asked in each]
        if any(value != values[0] for value in values):
            said.append(f"{name} ({' | '.join(map(_short, values))})")
    return f"These differ: {', '.join(said)}." if said else ""


def _short(value: Any) -> str:
    if value is None:
        return "none"
    said = value if isinstance(value, str) else json.dumps(value)
    return _one_line(said, 60)


def _one_line(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def failure_messages(row: Row) -> list[tuple[str, str]]:
    """Of each kind how often it came, and what the first said."""
    return [
        (
            f"{load_name(row)}: {kind}, {failure['count']} {'time' if failure['count'] == 1 else 'times'}, first",
            _one_line(str(failure.get("first", "")), _LONGEST_MESSAGE) or "-",
        )
        for kind, failure in row["failures"].items()
    ]


def doubts(row: Row) -> list[str]:
    """Where the client itself may have distorted a row, or a figure says less than its name."""
    said = []
    if 0 < row["succeeded"] < MIN_FOR_P95:
        said.append(f"{load_name(row)}: fewer than {MIN_FOR_P95} requests were answered: p95 is the longest")
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
    slow = "" if limits["p95_ms"] is None else f"{what} p95 <= {limits['p95_ms']:g} ms, "
    held = f"{slow}{gap}no failure"
    best = (
        "no rate that was tried holds"
        if search["rate_per_s"] is None
        else f"{_number(search['rate_per_s'])} requests/s hold"
    )
    return f"{best}: {held}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    parts = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in parts)


def compared(results: Sequence[Result], column: str) -> tuple[list[str], list[list[str]]]:
    """One figure, loads down, results across."""
    results = told_apart(results)
    each = [{(*_load(row), row["load"]["turn"]): row for row in rows(result)} for result in results]
    lines = []
    for load in sorted({load for measured in each for load in measured}):
        named = next(measured[load] for measured in each if load in measured)
        cells = [COLUMNS[column](measured[load]) if load in measured else "-" for measured in each]
        lines.append([load_name(named), *cells])
    return ["load", *(result["name"] for result in results)], lines


def _own_table(result: Result) -> tuple[list[str], list[list[str]]]:
    return list(COLUMNS), [[cell(row) for cell in COLUMNS.values()] for row in rows(result)]


def _code(text: str) -> str:
    """As Markdown has it, also with backticks inside."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def markdown(results: Sequence[Result]) -> str:
    results = told_apart(results)
    parts: list[str] = []
    if len(results) > 1:
        parts += [said, ""] if (said := differences(results)) else []
        for column in COMPARED:
            parts += [f"### {column}", "", _table(*compared(results, column)), ""]
    for result in results:
        parts += [f"### {result['name']}", "", f"{about(result)}: {_code(result['command'])}", ""]
        parts += [found(result), ""] if found(result) else []
        parts += [_table(*_own_table(result)), ""]
        notes = [f"* {said}: {_code(message)}" for row in rows(result) for said, message in failure_messages(row)]
        notes += [f"* {doubt}" for row in rows(result) for doubt in doubts(row)]
        parts += [*notes, ""] if notes else []
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
    results = told_apart(results)
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
            load = row["load"]
            turn = "" if load["turn"] == 1 else f"-turn-{load['turn']}"
            for which, example in row["timelines"].items():
                title = f"{result['name']}: {load_name(row)}, the {which} request"
                name = f"timeline-{number}-{load['kind']}-{load['value']:g}{turn}-{which}"
                drawn[name] = timeline_plot(title, example)
    return drawn


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
:root{{color-scheme:light}}body{{font:15px/1.5 system-ui,sans-serif;max-width:84rem;margin:2rem auto;padding:0 1rem;
color:#222}}table{{border-collapse:collapse;margin:.6rem 0 1.6rem;font-variant-numeric:tabular-nums}}
th,td{{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}}
th,td:nth-last-child(-n+2){{white-space:normal}}th{{vertical-align:bottom}}
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
    results = told_apart(results)
    title = "oscine bench: " + ", ".join(result["name"] for result in results)
    drawn = plots(results)
    main = [svg for name, svg in drawn.items() if not name.startswith("timeline-")]
    body = [f"<h1>{escape(title)}</h1>", '<div class="plots">', *main, "</div>"]
    if len(results) > 1:
        body += [f'<p class="doubt">{escape(said)}</p>'] if (said := differences(results)) else []
        for column in COMPARED:
            body += [f"<h3>{escape(column)}</h3>", _html_table(*compared(results, column))]
    for number, result in enumerate(results, start=1):
        body += _html_result(result)
        own = [svg for name, svg in drawn.items() if name.startswith(f"timeline-{number}-")]
        body += ["<details><summary>Timelines: sound received and played</summary>", '<div class="plots">']
        body += [*own, "</div></details>"]
    return _PAGE.format(title=escape(title), body="\n".join(body))


def _html_result(result: Result) -> list[str]:
    made_by = f"{escape(about(result))}<br><code>{escape(result['command'])}</code>"
    body = [f"<h2>{escape(result['name'])}</h2>", f'<p class="origin">{made_by}</p>']
    body += [f"<p><strong>{escape(found(result))}</strong></p>"] if found(result) else []
    body.append(_html_table(*_own_table(result)))
    for row in rows(result):
        for said, message in failure_messages(row):
            body.append(f'<p class="doubt">{escape(said)}: <code>{escape(message)}</code></p>')
    return body + [f'<p class="doubt">{escape(doubt)}</p>' for row in rows(result) for doubt in doubts(row)]
