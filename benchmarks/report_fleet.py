"""Tables of docs/deploy/sizing.md: simulated fleets, and how far the simulation agrees with what was measured."""

from __future__ import annotations

from typing import Any

from benchmarks.report_table import Result, origin, table

_FIGURES = {
    "x_real_time": "x real time",
    "rate": "requests/s",
    "first_audio_p50_ms": "first audio p50, ms",
    "first_audio_p95_ms": "first audio p95, ms",
    "e2e_p50_ms": "E2E p50, ms",
}


def fleet_tables(result: Result) -> str:
    figures = result["figures"]
    return "\n\n".join(
        [
            "Each cell: measured / simulated (difference).",
            _agreement_table(figures["agreement"]),
            f"{figures['cards']} cards, {figures['rate']:g} requests per second of 4.5 s on average, for 12 s:",
            _scenario_table(figures["scenarios"]),
            origin(result),
        ]
    )


def _agreement_table(rows: list[dict[str, Any]]) -> str:
    def cell(row: dict[str, Any], figure: str) -> str:
        if figure not in row["simulated"]:
            return "-"
        measured, simulated = row["measured"][figure], row["simulated"][figure]
        return f"{_shown(measured)} / {_shown(simulated)} ({100 * (simulated / measured - 1):+.0f} %)"

    return table(["load", *_FIGURES.values()], [[row["load"], *(cell(row, one) for one in _FIGURES)] for row in rows])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _scenario_table(scenarios: dict[str, Any]) -> str:
    rows = []
    for name, one in scenarios.items():
        times = " / ".join(f"{ms:.0f}" for ms in one["first_audio_ms"])
        cards = f", {one['mean_cards']:.1f} cards on average" if "mean_cards" in one else ""
        counts = (f"{one[key]:,}" for key in ("requests", "refused", "lost", "with_gap"))
        rows.append([name + cards, *counts, times])
    return table(["scenario", "requests", "refused", "lost", "with a gap", "first audio p50 / p95 / p99, ms"], rows)
