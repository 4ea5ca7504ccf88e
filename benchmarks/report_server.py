"""Sections of docs/benchmarks.md about the server: on a GPU beside other servers, its own share, a CPU under load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.report_table import SIZES, Result, Row, origin, table
from oscine.bench.report import COLUMNS, doubts, found, load_name, plots

VOICES = {"preset": "a preset voice", "clone": "a cloned voice, uploaded once, in context"}
# In docs/images: the plot's name in oscine.bench.report, and what it shows.
IMAGES = {
    "server-x-real-time.svg": ("x-real-time", "x real time against callers"),
    "server-first-audio.svg": ("first-audio", "first audio, p95, against requests per second"),
}
_README_CALLERS = (1, 8, 32, 128)


# --- on a GPU, beside others ---


def server_section(results: list[Result], peers: Result | None) -> str:
    """`results` of benchmarks/server.py."""
    results = sorted(results, key=_place)
    parts = [
        "## The server on a GPU, over HTTP",
        "",
        "`oscine serve` on random weights, `oscine bench` over loopback on the same machine. Every request has the",
        "same length: end of speech never comes, no silence is trimmed. Times are p50 / p95 ms; what each figure means",
        "is in [metrics.md](metrics.md).",
    ]
    for result in results:
        figures = result["figures"]
        audio_s = figures["frames"] / 12.5
        title = f"### {SIZES[figures['size']]}, {VOICES[figures['kind']]}, {figures['frames']} frames ({audio_s:.2f} s)"
        parts += ["", title, "", origin(result), "", _started(figures["server"])]
        shown = _comparable(peers, figures)
        parts += ["", *_peers_told(shown)] if shown else []
        for kind in ("closed", "open"):
            if any(row["load"]["kind"] == kind for row in figures["loads"]):
                parts += [line for made in _loads_tables(kind, figures["loads"], shown) for line in ("", made)]
        parts += ["", f"Search: {found(result)}."] if found(result) else []
        odd = [load_name(row) for row in figures["loads"] if not row.get("exact_length", True)]
        parts += ["", f"Not of exactly that length: {', '.join(odd)}."] if odd else []
        parts += ["", *(f"* {doubt}" for doubt in said)] if (said := _doubts(figures["loads"])) else []
    if images(results, peers):
        parts += ["", *(f"![{about}](images/{name})" for name, (_, about) in IMAGES.items())]
    return "\n".join(parts)


def _place(result: Result) -> tuple[int, int]:
    figures = result["figures"]
    return list(SIZES).index(figures["size"]), list(VOICES).index(figures["kind"])


def _comparable(peers: Result | None, figures: Row) -> list[Row]:
    """Those that were measured with the same model, voice and length."""
    same = peers is not None and all(peers[name] == figures[name] for name in ("size", "kind", "frames"))
    return peers["peers"] if peers is not None and same and figures["widths"] == "published" else []


def _started(server: Row) -> str:
    before, after = server["memory_ready"], server.get("memory_after")
    kernels = "kernels compiled by an earlier run" if server["kernels_cached"] else "kernels compiled anew"
    said = f"{server['slots']} slots. Ready after {server['start_s']:.0f} s ({kernels})"
    if before["gpu_used_mib"] is None:
        return f"{said}; engine process {before['engine_mib']:.0f} MiB, front end {before['front_end_mib']:.0f} MiB."
    then = "" if after is None else f", {after['gpu_used_mib'] / 1024:.1f} GiB after all loads"
    return (
        f"{said}; of the card's memory {before['gpu_used_mib'] / 1024:.1f} GiB are used{then} "
        f"({before['engine_device_mib'] / 1024:.1f} GiB by the engine's tensors)."
    )


def _peers_told(peers: Sequence[Row]) -> list[str]:
    told = [
        f"* **{p['name']}**: {p['version']}; {p['how']}. Start: {p['start']}. Memory: {p['memory']}." for p in peers
    ]
    said = "Beside it, measured by us on the same kind of card, with the same number of frames, over loopback:"
    return [said, "", *told]


# A figure of a row, as a cell; peers' rows hold less than ours.
_FIGURES: dict[str, Callable[[Row], str]] = {
    "x real time": lambda row: _number(row["x_real_time"]),
    "first audio": lambda row: _pair(row["first_audio_ms"]),
    "E2E": lambda row: _pair(row["e2e_ms"]),
    "gap > 100 ms": lambda row: _late(row),
    "any gap": lambda row: _gaps(row),
    "failed": COLUMNS["failures"],
}
_OURS_ONLY = ("any gap", "failed")
# Beside others, two tables: thirteen columns are more than a page is wide.
_TABLES = {
    "closed": (("x real time", "first audio"), ("E2E", "gap > 100 ms", "any gap", "failed")),
    "open": (("first audio", "gap > 100 ms"), ("E2E", "any gap", "failed")),
}


def _loads_tables(kind: str, ours: Sequence[Row], peers: Sequence[Row]) -> list[str]:
    parts = _TABLES[kind]
    return [_loads_table(kind, part, ours, peers) for part in (parts if peers else [sum(parts, ())])]


def _loads_table(kind: str, figures: Sequence[str], ours: Sequence[Row], peers: Sequence[Row]) -> str:
    """Loads down; each figure of all servers side by side."""
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
    """A few loads of one result, beside the others; then the highest rate at which nobody heard a gap."""
    loads, shown = result["figures"]["loads"], _comparable(peers, result["figures"])

    def chosen(rows: Sequence[Row]) -> list[Row]:
        return [row for row in rows if row["load"]["value"] in _README_CALLERS]

    others = [{**peer, "loads": chosen(peer["loads"])} for peer in shown]
    made = _loads_table("closed", ("x real time", "first audio"), chosen(loads), others)
    clean = [row for row in loads if row["load"]["kind"] == "open" and _gaps(row) == COLUMNS["failures"](row) == "0"]
    if not clean:
        return made
    most = max(clean, key=lambda row: row["load"]["value"])
    p95_ms = _number(most["first_audio_ms"]["p95"])
    rate = f"At {most['load']['value']:g} requests a second nobody hears a gap"
    return f"{made}\n\n{rate}, and the first sound comes within {p95_ms} ms (p95)."


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _pair(times: Row | None) -> str:
    return "-" if times is None else f"{_number(times['p50'])} / {_number(times['p95'])}"


def _late(row: Row) -> str:
    share = row["underruns"]["share_over_100_ms"] if "underruns" in row else row["share_over_100_ms"]
    return "-" if share is None else f"{100 * share:.3g} %"


def _gaps(row: Row) -> str:
    said = row.get("underruns")
    if said is None or not said["applicable"]:
        return "-"
    if not said["requests"]:
        return "0"
    return f"{said['requests']} of {said['applicable']}, at most {_number(said['worst_deficit_ms'])} ms"


def _doubts(rows: Sequence[Row]) -> list[str]:
    return [doubt for row in rows for doubt in doubts(row)]


def images(results: Sequence[Result], peers: Result | None) -> dict[str, str]:
    """SVG by file name: the 1.7B model's two voices and the peers in one plot each."""
    names = {"preset": "Oscine", "clone": "Oscine, cloned voice"}
    shown: list[Result] = [
        {**result, "name": names[result["figures"]["kind"]]}
        for result in sorted(results, key=_place)
        if (result["figures"]["size"], result["figures"]["widths"]) == ("1b7", "published")
    ]
    if not shown:
        return {}
    missing: dict[str, Any] = {"audible_ms": None, "timelines": {}}
    for peer in _comparable(peers, shown[0]["figures"]):
        shown.append({"name": peer["name"], "figures": {"loads": [missing | row for row in peer["loads"]]}})
    drawn = plots([_without_timelines(result) for result in shown])
    return {name: drawn[plot] + "\n" for name, (plot, _) in IMAGES.items() if plot in drawn}


def _without_timelines(result: Result) -> Result:
    loads = [{**row, "timelines": {}} for row in result["figures"]["loads"]]
    return {**result, "figures": {**result["figures"], "loads": loads}}


# --- its own share, and a CPU under load ---


def overhead_section(result: Result) -> str:
    figures = result["figures"]
    names = {
        "engine_first_chunk_ms": "the engine process alone: submit to first chunk",
        "http_first_byte_ms": "over HTTP: first byte sent to first byte of sound",
        "overhead_ms": "the server's share: HTTP less the engine's median",
    }
    rows = [[text, *(f"{figures[name][share]:.2f}" for share in ("p50", "p95", "p99"))] for name, text in names.items()]
    return "\n".join(
        [
            "## What the server adds",
            "",
            f"{figures['requests']} requests one by one, to an engine process that makes its first frame at once.",
            "",
            origin(result),
            "",
            table(["ms", "p50", "p95", "p99"], rows),
        ]
    )


def load_section(result: Result) -> str:
    """What was put to the server, and what came of it."""
    figures = result["figures"]
    overload, gone, kill = figures["overload"], figures["vanishing"], figures["killing"]
    before, after = overload["before"], overload["after"]
    held = "; ".join(
        f"{name.replace('_', ' ')} {then['memory_mib']:.0f} to {now['memory_mib']:.0f} MiB, {then['threads']} to "
        f"{now['threads']} threads, {then['descriptors']} to {now['descriptors']} descriptors"
        for (name, then), now in zip(before.items(), after.values(), strict=True)
    )
    rows = [
        ["capacity", f"{figures['capacity']['streams']} streams at once without a gap"],
        [
            f"three times that for {overload['seconds']:.0f} s",
            f"{overload['requests']} requests: {overload['accepted']} spoken, {overload['refused']} refused with 429; "
            f"the worst listener lacked {overload['underruns']['worst_deficit_ms']:.0f} ms in all",
        ],
        ["before and after it", held],
        [
            f"{gone['clients']} clients that vanish",
            f"{gone['settled_after_s']:.1f} s later {gone['slots_active']:.0f} run and {gone['queued']:.0f} wait",
        ],
        [
            f"kill -9 of the engine during {kill['streams']}",
            f"all clients told after {kill['last_client_told_after_s']:.2f} s, ready again after "
            f"{kill['ready_after_s']:.1f} s",
        ],
    ]
    return "\n".join(
        [
            "## The server under load, on a CPU",
            "",
            "`oscine serve` with a small random checkpoint; server, engine and load share the machine. A listener's",
            "player starts with the first sound and never waits for more.",
            "",
            origin(result),
            "",
            table(["what was done", "what came of it"], rows).replace("---:", "---"),
        ]
    )
