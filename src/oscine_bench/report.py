"""Turns results into tables for the terminal, Markdown, and one HTML page with charts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from oscine.errors import OscineError
from oscine_bench.metrics import MIN_FOR_P95
from oscine_bench.plots import Series, line_plot, timeline_plot
from oscine_bench.record import Result
from oscine_bench.summary import Row

_MESSAGE_CHARACTERS = 200
USUAL_CHARACTERS_PER_S = 15  # of speech, in European languages
TableContent = tuple[list[str], list[list[str]]]  # head, rows


# --- cells of one row ---


def number(value: float | None) -> str:
    """Formats three digits, never as 1e+03."""
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def p50_p95(times: Row | None) -> str:
    return "-" if times is None else f"{number(times['p50'])} / {number(times['p95'])}"


def load_name(row: Row) -> str:
    load = row["load"]
    name = f"closed loop, {load['value']:g}" if load["kind"] == "closed" else f"open loop, {number(load['value'])}/s"
    return name if load.get("turn", 1) == 1 else f"{name} ({load['turn']})"


def _sent_per_s(row: Row) -> str:
    """Returns the rate that an open loop really sent. With a fixed number of requests the window lasts until the last
    response, so it says little about the rate."""
    if row["load"]["kind"] != "open" or row.get("counted") or not row.get("window_s"):
        return "-"
    not_sent = row["failures"].get("not_sent", {"count": 0})["count"]
    return number((row["requests"] - not_sent) / row["window_s"])


def _underruns(row: Row) -> str:
    figures = row["underruns"]
    if not figures["applicable"]:
        return "n/a"
    if not figures["requests"]:
        return "0"
    worst = f"{figures['share_over_100_ms']:.1%} > 100 ms, worst {figures['worst_deficit_ms']:.0f} ms"
    return f"{figures['requests']} of {figures['applicable']}, {worst}"


def _failures(row: Row) -> str:
    counts = {kind: failure["count"] for kind, failure in row["failures"].items()} | {"inaudible": row["inaudible"]}
    return ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "0"


COLUMNS: dict[str, Callable[[Row], str]] = {
    "load": load_name,
    "requests": lambda row: str(row["requests"]),
    "sent/s": _sent_per_s,
    "audio, mean s": lambda row: "-" if row["audio_s"] is None else f"{row['audio_s']['mean']:.2f}",
    "x real time": lambda row: number(row["x_real_time"]),
    "requests/s": lambda row: number(row["requests_per_s"]),
    "first audio p50 / p95 ms": lambda row: p50_p95(row["first_audio_ms"]),
    "audible p50 / p95 ms": lambda row: p50_p95(row["audible_ms"]),
    "E2E p50 / p95 ms": lambda row: p50_p95(row["e2e_ms"]),
    "underruns": _underruns,
    "failures": _failures,
}
COMPARED = tuple(COLUMNS)[3:]  # one small table each where results are compared


def failure_messages(row: Row) -> list[tuple[str, str]]:
    """Returns how often each kind of failure occurred, and its first message."""
    return [
        (
            f"{load_name(row)}: {kind}, {failure['count']} {'time' if failure['count'] == 1 else 'times'}, first",
            _one_line(str(failure.get("first", "")), _MESSAGE_CHARACTERS) or "-",
        )
        for kind, failure in row["failures"].items()
    ]


def warnings(row: Row) -> list[str]:
    """Warns of rows that the client may have distorted, and of too few requests for a p95."""
    found = []
    if 0 < row["succeeded"] < MIN_FOR_P95:
        found.append(f"fewer than {MIN_FOR_P95} successful requests: p95 is the maximum")
    lag, starved, sent = row["client"]["loop_lag_ms"], row["client"]["starved_share"], row["send_lag_ms"]
    if lag is not None and lag["p99"] > 5:
        found.append(f"the client's event loop was {lag['p99']:.1f} ms late at p99; times may be that much too long")
    if starved is not None and starved > 0.1:
        found.append(f"the client waited for a core {starved:.0%} of the time; measure on an idle machine")
    if row["load"]["kind"] == "open" and sent is not None and sent["p99"] > 20:
        found.append(f"requests were sent {sent['p99']:.1f} ms late at p99, so this was not an open loop")
    return [f"{load_name(row)}: {warning}" for warning in found]


# --- whole results ---


def rows(result: Result) -> list[Row]:
    """Adds two facts of the whole result to its rows: the turn of a load that was measured more than once, and whether
    a fixed number of requests was sent."""
    figures, turns = result["figures"], Counter[tuple[str, float]]()
    counted = "requests" in figures.get("span", {})
    numbered = []
    for row in figures["loads"]:
        turns[_load(row)] += 1
        numbered.append({**row, "load": {**row["load"], "turn": turns[_load(row)]}, "counted": counted})
    return numbered


def _load(row: Row) -> tuple[str, float]:
    return row["load"]["kind"], row["load"]["value"]


def with_unique_names(results: Sequence[Result]) -> list[Result]:
    """Adds the file name to equal names, and a number if the file names are equal, too."""
    by_file = _mark_equal(results, [result.get("file") for result in results])
    return _mark_equal(by_file, [str(place) for place in range(1, len(results) + 1)])


def _mark_equal(results: Sequence[Result], marks: Sequence[str | None]) -> list[Result]:
    counts = Counter(result["name"] for result in results)
    return [
        {**result, "name": f"{result['name']} ({mark})"} if mark and counts[result["name"]] > 1 else result
        for result, mark in zip(results, marks, strict=True)
    ]


def origin(result: Result) -> str:
    """Returns version and commit of the client; a server does not state its own."""
    figures, made, target = result["figures"], result["versions"], result["figures"]["target"]
    return (
        f"{result['machine']}; {target['preset']} over {target['transport']}, texts: {figures['workload']['name']}; "
        f"measured with oscine {made['oscine']}, Python {made['python']}, commit {result['commit']}, {result['date']}"
    )


def search_outcome(result: Result) -> str:
    """Describes the outcome of a search; empty for a run."""
    search = result["figures"].get("search")
    if search is None:
        return ""
    limits, best = search["limits"], search["rate_per_s"]
    figure = limits["figure"].removesuffix("_ms").replace("_", " ")
    held = [f"{figure} p95 <= {limits['p95_ms']:g} ms"] if limits["p95_ms"] is not None else []
    held += [f"no underrun above {limits['underrun_ms']:g} ms"] if limits["underrun_ms"] is not None else []
    rate = "no tested rate holds" if best is None else f"{number(best)} requests/s hold"
    ended = "" if search.get("complete", True) else " (not searched to the end)"
    return f"{rate}: {', '.join([*held, 'no failure'])}{ended}"


def cost(result: Result) -> str:
    """Describes what speech costs at the load with the most audio; empty without a price."""
    figures = result["figures"]
    price, measured = figures.get("price_per_hour"), [row for row in rows(result) if row["x_real_time"]]
    if price is None or not measured:
        return ""
    row = max(measured, key=lambda row: row["x_real_time"])
    characters_per_s, assumed = row.get("characters_per_s"), ""
    if figures.get("frames") is not None or not characters_per_s:  # the audio does not follow the texts
        characters_per_s = USUAL_CHARACTERS_PER_S * row["x_real_time"]
        assumed = f" (with {USUAL_CHARACTERS_PER_S} characters in a second of speech)"
    per_million, per_audio_hour = price / 3600 / characters_per_s * 1e6, price / row["x_real_time"]
    return (
        f"at {price:g} an hour and full load ({load_name(row)}): {number(per_million)} for a million characters"
        f"{assumed}, {number(per_audio_hour)} for an hour of audio"
    )


def differences(results: Sequence[Result]) -> str:
    """Lists in one line what was requested differently; empty if nothing was."""
    each = [_conditions(result) for result in results]
    found = []
    for name in dict.fromkeys(name for conditions in each for name in conditions):
        values = [conditions.get(name) for conditions in each]
        if any(value != values[0] for value in values):
            found.append(f"{name} ({' | '.join(map(_short, values))})")
    return f"These differ: {', '.join(found)}." if found else ""


def _conditions(result: Result) -> dict[str, Any]:
    """Returns what should be equal between figures that are compared."""
    figures = result["figures"]
    target, workload, frames = figures["target"], figures["workload"], figures.get("frames")
    fields = dict(target.get("fields", {}))
    conditions = {
        "machine": result["machine"],
        "target": f"{target['preset']} over {target['transport']}",
        "workload": workload["name"],
        "texts": workload.get("texts"),
        "seed": workload.get("seed"),
        "frames": frames,
        "format": fields.pop("response_format", None),
        "span": ", ".join(f"{name} {value}" for name, value in figures.get("span", {}).items()) or None,
        "word interval, s": target.get("word_interval_s"),
    }
    if frames is not None:  # max_new_tokens repeats it; servers count tokens differently
        fields.pop("max_new_tokens", None)
    return conditions | fields | conditions  # in this order; `fields` override nothing


def _short(value: Any) -> str:
    return "none" if value is None else _one_line(value if isinstance(value, str) else json.dumps(value), 60)


def _one_line(text: str, max_characters: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


# --- tables and pages ---


def own_table(result: Result) -> TableContent:
    return list(COLUMNS), [[cell(row) for cell in COLUMNS.values()] for row in rows(result)]


def compared(results: Sequence[Result], column: str) -> TableContent:
    """Makes the table of one figure: a row for each load, a column for each result."""
    results = with_unique_names(results)
    each = [{(*_load(row), row["load"]["turn"]): row for row in rows(result)} for result in results]
    lines = []
    for load in sorted({load for measured in each for load in measured}):
        name = load_name(next(measured[load] for measured in each if load in measured))
        lines.append([name, *(COLUMNS[column](measured[load]) if load in measured else "-" for measured in each)])
    return ["load", *(result["name"] for result in results)], lines


def markdown(results: Sequence[Result]) -> str:
    results = with_unique_names(results)
    parts = [differences(results)]
    if len(results) > 1:
        for column in COMPARED:
            parts += [f"### {column}", _markdown_table(*compared(results, column))]
    for result in results:
        parts += [f"### {result['name']}", f"{origin(result)}: {_code(result['command'])}"]
        parts += [search_outcome(result), cost(result), _markdown_table(*own_table(result))]
        notes = [f"{about}: {_code(message)}" for row in rows(result) for about, message in failure_messages(row)]
        notes += [warning for row in rows(result) for warning in warnings(row)]
        parts.append("\n".join(f"* {note}" for note in notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    content = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in content)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def html(results: Sequence[Result]) -> str:
    """Makes one page that needs no network and no other file."""
    try:
        import jinja2
    except ImportError:
        raise OscineError("the page needs jinja2; install it with: pip install 'oscine[bench]'") from None
    results = with_unique_names(results)
    template = resources.files(__package__).joinpath("templates", "report.html.j2").read_text(encoding="utf-8")
    shown = [
        {
            "name": result["name"],
            "origin": origin(result),
            "command": result["command"],
            "search": search_outcome(result),
            "cost": cost(result),
            "table": own_table(result),
            "failures": [message for row in rows(result) for message in failure_messages(row)],
            "warnings": [warning for row in rows(result) for warning in warnings(row)],
            "timelines": [svg for _, svg in _timelines(place, result)],
        }
        for place, result in enumerate(results, start=1)
    ]
    return (
        jinja2.Environment(autoescape=True)
        .from_string(template)
        .render(
            title="oscine bench: " + ", ".join(result["name"] for result in results),
            charts=[svg for _, svg in _load_charts(results)],
            differences=differences(results),
            compared=[(column, compared(results, column)) for column in COMPARED] if len(results) > 1 else [],
            results=shown,
        )
    )


# --- charts ---


def load_chart(results: Sequence[Result], name: str) -> str | None:
    """Draws one chart of CHARTS; returns None if it has no figures."""
    title, kind, x_name, y_name, figure = CHARTS[name]
    series = []
    for result in with_unique_names(results):
        values = [(row["load"]["value"], figure(row)) for row in rows(result) if row["load"]["kind"] == kind]
        if points := sorted((x, y) for x, y in values if y is not None):
            series.append(Series(result["name"], tuple(points)))
    return line_plot(title, x_name, y_name, series) if series else None


def _p95(figure: str) -> Callable[[Row], float | None]:
    return lambda row: row[figure] and row[figure]["p95"]


_RATE, _CALLERS = "requests per second", "callers"
CHARTS: dict[str, tuple[str, str, str, str, Callable[[Row], float | None]]] = {
    "first-audio": ("First audio, p95, open loop", "open", _RATE, "ms", _p95("first_audio_ms")),
    "audible": ("Audible first audio, p95, open loop", "open", _RATE, "ms", _p95("audible_ms")),
    "x-real-time": ("x real time, all callers together", "closed", _CALLERS, "x", lambda row: row["x_real_time"]),
    "first-audio-closed": ("First audio, p95, closed loop", "closed", _CALLERS, "ms", _p95("first_audio_ms")),
}


def plots(results: Sequence[Result]) -> dict[str, str]:
    """Returns SVG by name, for all figures that were measured."""
    results = with_unique_names(results)
    timelines = [chart for place, result in enumerate(results, start=1) for chart in _timelines(place, result)]
    return dict([*_load_charts(results), *timelines])


def _load_charts(results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    for name in CHARTS:
        if svg := load_chart(results, name):
            yield name, svg


def _timelines(place: int, result: Result) -> Iterator[tuple[str, str]]:
    for row in rows(result):
        load = row["load"]
        turn = "" if load["turn"] == 1 else f"-turn-{load['turn']}"
        for which, example in row["timelines"].items():
            title = f"{result['name']}: {load_name(row)}, the {which} request"
            name = f"timeline-{place}-{load['kind']}-{load['value']:g}{turn}-{which}"
            yield name, timeline_plot(title, example)
