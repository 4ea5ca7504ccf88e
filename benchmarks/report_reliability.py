"""The figures of docs/reliability.md: soak and overload; and of docs/deploy/triton.md: what Triton costs."""

from __future__ import annotations

from collections import Counter

from benchmarks.report_table import SIZES, Result, Row, origin, paragraph, table

_KINDS = {
    "http": "listen over HTTP",
    "events": "listen to events",
    "wav": "fetch a WAV",
    "websocket": "speak words over WebSocket",
    "leave": "leave in the middle",
    "interrupt": "interrupt, and speak again",
    "refused": "send a bad request",
    "broken": "send broken bytes",
    "upload": "upload a voice (preset checkpoints refuse it)",
}
_REFUSED = ("http_429", "overloaded")
_FORECAST_PHASES = ("before", "beside a busy loop on each core", "after it")
_MEMORY = {
    "front_end_mib": "front end",
    "engine_mib": "engine",
    "device_mib": "allocated by torch",
    "gpu_used_mib": "of the GPU",
}


def soak_table(result: Result) -> str:
    figures = result["figures"]
    rows = []
    for kind, words in _KINDS.items():
        counts = Counter(figures["results"][kind])
        served, refused = counts["ok"], sum(counts[name] for name in _REFUSED)
        rows.append([words, f"{counts.total():,}", f"{served:,}", str(refused), str(counts.total() - served - refused)])
    head = ["clients that", "number", "served as expected", "told to come back", "met the dead engine"]
    return f"{_soak_words(figures)}\n\n{table(head, rows)}\n\n{origin(result)}"


def short_soak_words(result: Result) -> str:
    return f"{_soak_words(result['figures'])}\n\n{origin(result)}"


def _soak_words(figures: Row) -> str:
    first, kills = figures["first_audio_ms"], [f"{kill['back_after_s']:.1f} s" for kill in figures["kills"]]
    unexpected = sum(figures["failures"].values())
    slopes = ", ".join(
        f"{words} {round(slope['mib_per_minute'], 2) + 0.0:.2f}"
        for name, words in _MEMORY.items()
        if (slope := figures["slopes"].get(name))
    )
    same = "the same" if figures["alone"]["before"] == figures["alone"]["after"] else "OTHER"
    left = "nothing" if not any(value > 0 for value in figures["left"].values()) else f"{figures['left']}"
    return paragraph(
        f"""{_model(figures)}: {figures["requests"]:,} clients in {figures["seconds"] / 60:.0f} minutes,
        {figures["rate_per_s"]:.3g} a second. The engine was killed {len(kills)} times and was back after
        {" and ".join(kills)}. Unexpected results: {unexpected}. First audio p50 {first["p50"]:.0f}, p95
        {first["p95"]:.0f}, at most {first["most"]:.0f} ms; the longest playback deficit was
        {figures["deficit_ms"]["most"]:.0f} ms (p99 {figures["deficit_ms"]["p99"]:.0f}), while the engine waited
        {figures["engine_starved_s"]:.1f} s in all for a core. At the end, the same seeds gave {same} bytes as at the
        beginning, and {left} was still held. Memory over the second half, MiB per minute: {slopes}."""
    )


def overload_table(result: Result) -> str:
    figures = result["figures"]
    load = figures["overload"]
    columns = [
        [
            _model(figures),
            "requests",
            "admitted",
            "429 without Retry-After",
            "tries of a client, at most",
            "first audio p50 / p95 / most, ms",
            "refusal p50 / p95 / most, ms",
            "admitted streams with a gap",
        ],
        [
            f"{load['rate_per_s']:.0f} requests/s for {load['seconds']:.0f} s (3 x capacity)",
            f"{load['requests']:,}",
            f"{load['accepted']:,}",
            str(load["refusals_without_retry_after"]),
            "1 (nobody came again)",
            _spread(load["first_audio_ms"]),
            _spread(load["refused_after_ms"]),
            str(load["underruns"]["requests"]),
        ],
        *map(_burst_column, figures["bursts"]),
    ]
    head, *rows = map(list, zip(*columns, strict=True))
    waits = f"`engine.queue_wait_s` was {figures['queue_wait_s']:g}."
    return f"{table(head, rows)}\n\n{waits} {origin(result)}"


def forecast_table(result: Result) -> str:
    """Forecast divided by wait; 1 is right, 2 twice too long."""
    rows = []
    phases = zip(_FORECAST_PHASES, result["figures"]["phases"].values(), strict=True)
    for phase, figures in phases:
        waited = [one for one in (figures[name] for name in ("first_burst", "bursts", "later")) if one]
        rows.append(
            [
                phase,
                f"{figures['load_average']:.0f}",
                " to ".join(map(str, sorted({min(figures["admitted"]), max(figures["admitted"])}))),
                f"{max(one['wait_s'] for one in waited):.1f}" if waited else "-",
                *(_ratio(figures[name]) for name in ("first_burst", "bursts", "later")),
            ]
        )
    head = [
        f"demo voice, bursts of {result['figures']['requests']}",
        "load average",
        "admitted at once",
        "longest median wait, s",
        "forecast / wait in the first burst",
        "in the other bursts: p10 / p50 / p90",
        "while the streams run",
    ]
    return f"{table(head, rows)}\n\n{origin(result)}"


def _ratio(figures: Row | None) -> str:
    if figures is None:
        return "-"
    if figures["count"] == 1:
        return f"{figures['p50']:.2f}"
    return " / ".join(f"{figures[name]:.2f}" for name in ("p10", "p50", "p90"))


def _burst_column(burst: Row) -> list[str]:
    retried = sum(count for tries, count in burst["tries"].items() if int(tries) > 1)
    after = f", {retried} of them after a 429" if retried else ""
    return [
        f"{burst['clients']} at once",
        f"{burst['clients']}",
        f"{burst['results'].get('ok', 0)}{after}",
        str(burst["results"].get("http_429", 0)),
        str(max(map(int, burst["tries"]))),
        _spread(burst["first_audio_ms"]),
        "-",
        _gaps(burst["deficit_ms"]),
    ]


def _spread(figures: Row) -> str:
    return " / ".join(f"{figures[name]:.0f}" for name in ("p50", "p95", "most"))


def _gaps(deficit_ms: Row) -> str:
    return "0" if not deficit_ms["most"] else f"some, at most {deficit_ms['most']:.0f} ms"


def _model(figures: Row) -> str:
    name = SIZES.get(figures["model"])
    return f"{name or 'Demo voice'}, {figures['slots']} slots"


def triton_table(result: Result) -> str:
    """Our own server and Triton, load by load."""
    figures = result["figures"]
    own, triton = figures["own"]["loads"], figures["triton"]["loads"]
    rows = [
        [callers, *(f"{one[callers]['x_real_time']:.0f}" for one in (own, triton)), *_first(own, triton, callers)]
        for callers in own
    ]
    head = [
        f"callers, {_model(figures)}",
        "x real time, `oscine serve`",
        "Triton",
        "first audio p50 / p95, `oscine serve`, ms",
        "Triton, ms",
    ]
    return f"{table(head, rows)}\n\n{origin(result, '../')}"


def _first(own: Row, triton: Row, callers: str) -> list[str]:
    return [
        " / ".join(f"{one[callers]['first_audio_ms'][name]:.1f}" for name in ("p50", "p95")) for one in (own, triton)
    ]
