"""Sections of docs/benchmarks.md about the server: on a GPU next to other servers, and a CPU under load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report_sections import KERNELS
from benchmarks.report_table import SIZES, Result, Row, blocks, paragraph, section, table, words_table
from oscine_bench.report import COLUMNS, load_chart, load_name, number, p50_p95, search_outcome, warnings

VOICES = {"preset": "a preset voice", "clone": "a cloned voice, uploaded once, in context"}
# Charts in docs/images: their name in oscine_bench.report, and their alternative text.
IMAGES = {
    "server-x-real-time.svg": ("x-real-time", "x real time against callers"),
    "server-first-audio.svg": ("first-audio", "first audio, p95, against requests per second"),
}
_README_CALLERS = (1, 8, 32, 128)
_SLOTS = 128  # unless a title says otherwise


# --- on a GPU, next to other servers ---


def server_section(results: list[Result], peers: Result | None) -> str:
    """`results`: of benchmarks/server.py."""
    how = """\
`oscine serve` with random weights, `oscine bench` over loopback on the same machine. All responses have the
same length: speech never ends by itself, and no silence is trimmed. Times are p50 / p95 ms;
[metrics.md](metrics.md) defines the figures."""
    charts = [f"![{about}](images/{name})" for name, (_, about) in IMAGES.items()] if images(results, peers) else []
    return blocks(
        section(
            "The server on a GPU, over HTTP", how, sorted(results, key=_place),
            lambda result: _served(result, peers), lambda result: _title(result["figures"]),
        ),
        "\n".join(charts),
    )  # fmt: skip


def _served(result: Result, peers: Result | None) -> str:
    figures, loads = result["figures"], result["figures"]["loads"]
    shown = _comparable(peers, figures)
    parts = [_started(figures["server"]), *(_peers_described(shown) if shown else []), _newer(peers) if shown else ""]
    for kind in ("closed", "open"):
        if any(row["load"]["kind"] == kind for row in loads):
            parts += _loads_tables(kind, loads, shown)
    parts += [f"Search: {search_outcome(result)}."] if search_outcome(result) else []
    odd = [load_name(row) for row in loads if not row.get("exact_length", True)]
    parts += [f"Responses of another length: {', '.join(odd)}."] if odd else []
    return blocks(*parts, "\n".join(f"* {warning}" for row in loads for warning in warnings(row)))


def _title(figures: Row) -> str:
    """The title, in part as benchmarks/server.py names the file."""
    parts = [SIZES[figures["size"]], VOICES[figures["kind"]]]
    parts.append(f"{figures['frames']} frames ({figures['frames'] / 12.5:.2f} s)")
    parts += [f"{figures['server']['slots']} slots"] if figures["server"]["slots"] != _SLOTS else []
    parts += [] if _has_callers(figures) else ["rates"]
    return ", ".join(parts)


def _has_callers(figures: Row) -> bool:
    return any(row["load"]["kind"] == "closed" for row in figures["loads"])


def _is_main(figures: Row) -> bool:
    """Shown in charts and next to peers."""
    return bool(figures["server"]["slots"] == _SLOTS and _has_callers(figures))


def _place(result: Result) -> tuple[int, int, bool, int]:
    figures = result["figures"]
    place = list(SIZES).index(figures["size"]), list(VOICES).index(figures["kind"])
    return *place, not _is_main(figures), figures["server"]["slots"]


def _comparable(peers: Result | None, figures: Row) -> list[Row]:
    """Peers that were measured with the same model, voice and length."""
    same = peers is not None and all(peers[name] == figures[name] for name in ("size", "kind", "frames"))
    comparable = same and figures["widths"] == "published" and _is_main(figures)
    return peers["peers"] if peers is not None and comparable else []


def _started(server: Row) -> str:
    before, after = server["memory_ready"], server.get("memory_after")
    where = f"{server['device']}, " if "device" in server else ""  # older results do not say it
    start = f"{where}{server['slots']} slots. Ready after {server['start_s']:.0f} s, {_compiled(server)}"
    if before["gpu_used_mib"] is None:
        return f"{start}; engine process {before['engine_mib']:.0f} MiB, front end {before['front_end_mib']:.0f} MiB."
    then = "" if after is None else f", {after['gpu_used_mib'] / 1024:.1f} GiB after all loads"
    return (
        f"{start}; GPU memory used: {before['gpu_used_mib'] / 1024:.1f} GiB{then} "
        f"({before['engine_device_mib'] / 1024:.1f} GiB are the engine's tensors)."
    )


def _compiled(server: Row) -> str:
    """What a start includes."""
    starts = "[with empty and with full caches](#from-start-to-ready)"
    if "kernels_compiled" not in server:  # an older result
        known = "with some kernels in Triton's cache and any others" if server["kernels_cached"] else "with all kernels"
        return f"{known} compiled meanwhile ({starts})"
    compiled = [f"{count} {KERNELS[kind]} kernels" for kind, count in server["kernels_compiled"].items() if count]
    return f"with {' and '.join(compiled)} compiled meanwhile ({starts})" if compiled else "all kernels were cached"


def _peers_described(peers: Sequence[Row]) -> list[str]:
    lines = [
        f"* **{p['name']}**: {p['version']}; {p['how']}. Start: {p['start']}. Memory: {p['memory']}." for p in peers
    ]
    head = "Other servers, measured by us on the same kind of GPU, with the same number of frames, over loopback:"
    return [head, "\n".join(lines)]


def _newer(peers: Result | None) -> str:
    """Says which newer versions were not measured, with their makers' figures."""
    if peers is None or "newer" not in peers:
        return ""
    newer = peers["newer"]
    return paragraph(
        f"Newer than what we could measure, because {newer['why']}: {newer['servers']}. Their makers' own figures: "
        f"{'; '.join(newer['published'])}."
    )


# Cells of a table; rows of peers have fewer figures than ours.
_FIGURES: dict[str, Callable[[Row], str]] = {
    "x real time": lambda row: number(row["x_real_time"]),
    "first audio": lambda row: p50_p95(row["first_audio_ms"]),
    "E2E": lambda row: p50_p95(row["e2e_ms"]),
    "gap > 100 ms": lambda row: _late(row),
    "any gap": lambda row: _gaps(row),
    "failed": COLUMNS["failures"],
}
_OURS_ONLY = ("any gap", "failed")
# With peers there are two tables: thirteen columns are wider than a page.
_TABLES = {
    "closed": (("x real time", "first audio"), ("E2E", "gap > 100 ms", "any gap", "failed")),
    "open": (("first audio", "gap > 100 ms"), ("E2E", "any gap", "failed")),
}


def _loads_tables(kind: str, ours: Sequence[Row], peers: Sequence[Row]) -> list[str]:
    parts = _TABLES[kind]
    return [_loads_table(kind, part, ours, peers) for part in (parts if peers else [sum(parts, ())])]


def _loads_table(kind: str, figures: Sequence[str], ours: Sequence[Row], peers: Sequence[Row]) -> str:
    """One row per load; for each figure, one column per server."""
    servers = [("Oscine", list(ours)), *((peer["name"], peer["loads"]) for peer in peers)]
    head = ["callers" if kind == "closed" else "requests/s"]
    cells: list[tuple[Callable[[Row], str], dict[float, Row]]] = []
    for figure in figures:
        for name, rows in servers if figure not in _OURS_ONLY else servers[:1]:
            head.append(f"{figure}, {name}" if peers else figure)
            at = {row["load"]["value"]: row for row in rows if row["load"]["kind"] == kind}
            cells.append((_FIGURES[figure], at))
    loads = sorted({load for _, rows in cells for load in rows})
    lines = [[f"{load:g}", *(cell(rows[load]) if load in rows else "-" for cell, rows in cells)] for load in loads]
    return table(head, lines)


def readme_server_table(result: Result, peers: Result | None) -> str:
    """A few loads of one result next to the peers; then the highest rate without a gap, and newer peers."""
    loads, shown = result["figures"]["loads"], _comparable(peers, result["figures"])

    def chosen(rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row["load"]["value"] in _README_CALLERS]

    others = [{**peer, "loads": chosen(peer["loads"])} for peer in shown]
    made = _loads_table("closed", ("x real time", "first audio"), chosen(loads), others)
    clean = [row for row in loads if row["load"]["kind"] == "open" and _gaps(row) == COLUMNS["failures"](row) == "0"]
    rate = ""
    if clean:
        fastest = max(clean, key=lambda row: row["load"]["value"])
        p95_ms = number(fastest["first_audio_ms"]["p95"])
        rate = f"At {fastest['load']['value']:g} requests per second no playback has a gap"
        rate += f", and first audio arrives within {p95_ms} ms (p95)."
    return blocks(made, rate, _newer(peers) if shown else "")


def _late(row: Row) -> str:
    share = row["underruns"]["share_over_100_ms"] if "underruns" in row else row["share_over_100_ms"]
    return "-" if share is None else f"{100 * share:.3g} %"


def _gaps(row: Row) -> str:
    figures = row.get("underruns")
    if figures is None or not figures["applicable"]:
        return "-"
    if not figures["requests"]:
        return "0"
    return f"{figures['requests']} of {figures['applicable']}, at most {number(figures['worst_deficit_ms'])} ms"


def images(results: Sequence[Result], peers: Result | None) -> dict[str, str]:
    """SVG by file name: both voices of the 1.7B model and the peers in each chart."""
    names = {"preset": "Oscine", "clone": "Oscine, cloned voice"}
    shown: list[Result] = [
        {**result, "name": names[result["figures"]["kind"]]}
        for result in sorted(results, key=_place)
        if (result["figures"]["size"], result["figures"]["widths"]) == ("1b7", "published")
        and _is_main(result["figures"])
    ]
    if not shown:
        return {}
    missing: dict[str, Any] = {"audible_ms": None, "timelines": {}}
    for peer in _comparable(peers, shown[0]["figures"]):
        shown.append({"name": peer["name"], "figures": {"loads": [missing | row for row in peer["loads"]]}})
    charts = {name: load_chart(shown, chart) for name, (chart, _) in IMAGES.items()}
    return {name: f"{svg}\n" for name, svg in charts.items() if svg}


# --- a CPU under load ---


_TRIALS = {
    "capacity": "{capacity[streams]} streams at once without a gap",
    "three times that for {overload[seconds]:.0f} s": "{overload[requests]} requests: {overload[accepted]} accepted, "
    "{overload[refused]} refused with 429; worst playback deficit {overload[underruns][worst_deficit_ms]:.0f} ms",
    "resources before and after": "{held}",
    "{vanishing[clients]} clients that disconnect at random moments": "{vanishing[settled_after_s]:.1f} s later, "
    "{vanishing[slots_active]:.0f} streams run and {vanishing[queued]:.0f} requests are queued",
    "kill -9 of the engine during {killing[streams]} streams": "all clients notified after "
    "{killing[last_client_told_after_s]:.2f} s, ready again after {killing[ready_after_s]:.1f} s",
}


def load_section(results: list[Result]) -> str:
    """The stress test: each trial and its outcome."""
    how = """\
`oscine serve` with a small random checkpoint; server, engine and load share the machine. Players start
with the first audio and do not buffer."""
    return section("The server under load, on a CPU", how, results, lambda result: _trials(result["figures"]))


def _trials(figures: Row) -> str:
    before, after = figures["overload"]["before"], figures["overload"]["after"]
    held = "; ".join(
        f"{name.replace('_', ' ')} {then['memory_mib']:.0f} to {now['memory_mib']:.0f} MiB, {then['threads']} to "
        f"{now['threads']} threads, {then['descriptors']} to {now['descriptors']} descriptors"
        for (name, then), now in zip(before.items(), after.values(), strict=True)
    )
    facts = {**figures, "held": held}
    rows = [[one.format_map(facts) for one in trial] for trial in _TRIALS.items()]
    return words_table(["trial", "outcome"], rows)
