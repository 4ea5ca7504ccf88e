"""Writes deploy/grafana/dashboards/oscine.json with Grafana's own builders, which `make linters` installs.

.venv-linters/bin/python tools/grafana_dashboard.py [--check]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DatasourceVariable,
    QueryVariable,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "dashboards" / "oscine.json"
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED = "green", "yellow", "red"


def of(metric: str, matchers: str = "") -> str:
    """The metric, of the instances that are chosen at the top of the dashboard."""
    return f'{metric}{{instance=~"$instance"{", " + matchers if matchers else ""}}}'


def rate(metric: str, matchers: str = "") -> str:
    return f"rate({of(metric, matchers)}[$__rate_interval])"


def quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share:g}, sum by (le) ({rate(metric + '_bucket')}))"


# A speech with several gaps counts as several, so the share is a lower bound.
GAP_FREE = f"clamp_min(1 - sum({rate('oscine_underruns_total')}) / sum({rate('oscine_finish_total')}), 0)"
FULL = rate("oscine_requests_total", 'status="429"')
REFUSALS = rate("oscine_requests_total", 'status=~"429|503"')
REFUSED = f"sum({FULL}) / sum({rate('oscine_requests_total')}) or vector(0)"
LOAD = f"max({of('oscine:load:ratio')})"


@dataclass(frozen=True)
class PanelSpec:
    """`queries` maps the legend to the expression. `steps` are (from value, color); the first color is the base."""

    title: str
    text: str
    unit: str
    queries: dict[str, str]
    steps: tuple[tuple[float | None, str], ...] = ((None, GREEN),)


STATS = (
    PanelSpec(
        "Ready",
        "Models that accept requests, on all servers.",
        "short",
        {"ready": f"sum({of('oscine_engine_ready')})"},
        ((None, RED), (1, GREEN)),
    ),
    PanelSpec(
        "Load",
        "1 is full: slots or time of the most loaded engine.",
        "percentunit",
        {"load": LOAD},
        ((None, GREEN), (0.7, YELLOW), (0.9, RED)),
    ),
    PanelSpec(
        "First audio, p95",
        "Request to first audio sent.",
        "s",
        {"p95": quantile(0.95, "oscine_ttfa_seconds")},
        ((None, GREEN), (0.2, YELLOW), (0.3, RED)),
    ),
    PanelSpec(
        "Gap-free, at least",
        "Share of speeches without a gap; a speech with two gaps counts twice.",
        "percentunit",
        {"gap-free": GAP_FREE},
        ((None, RED), (0.99, YELLOW), (0.999, GREEN)),
    ),
    PanelSpec(
        "Refused",
        "Share of requests that were answered 429.",
        "percentunit",
        {"refused": REFUSED},
        ((None, GREEN), (0.01, YELLOW), (0.05, RED)),
    ),
    PanelSpec(
        "x real time",
        "Seconds of audio sent per second.",
        "none",
        {"x real time": f"sum({rate('oscine_audio_seconds_total')})"},
    ),
)
GRAPHS = (
    PanelSpec(
        "First audio",
        "Request to first audio sent, of streamed responses. Audible: to the first sample above -50 dBFS.",
        "s",
        {
            "p50": quantile(0.5, "oscine_ttfa_seconds"),
            "p95": quantile(0.95, "oscine_ttfa_seconds"),
            "p99": quantile(0.99, "oscine_ttfa_seconds"),
            "audible p95": quantile(0.95, "oscine_audible_ttfa_seconds"),
        },
    ),
    PanelSpec("Gap-free speeches, at least", "See the figure above.", "percentunit", {"gap-free": GAP_FREE}),
    PanelSpec(
        "Slots",
        "Running streams, and the maximum.",
        "short",
        {
            "running {{instance}} {{model}}": of("oscine_slots_active"),
            "slots {{instance}} {{model}}": of("oscine_slots"),
        },
    ),
    PanelSpec(
        "Queue",
        "Requests waiting for a slot.",
        "short",
        {"{{instance}} {{model}}": of("oscine_queue_depth")},
    ),
    PanelSpec(
        "Requests",
        "By HTTP status; 499: the client left. 200 with an error later is in the panel of ends.",
        "reqps",
        {"{{status}}": f"sum by (status) ({rate('oscine_requests_total')})"},
    ),
    PanelSpec(
        "Refusals",
        "429: full. 503: not ready or draining.",
        "reqps",
        {"{{status}} {{instance}}": f"sum by (status, instance) ({REFUSALS})"},
    ),
    PanelSpec(
        "Tick",
        "Duration of one frame for all running streams. Admission stops at 64 ms; above 80 ms listeners hear gaps.",
        "s",
        {
            "mean {{instance}} {{model}}": of("oscine:tick:seconds"),
            "p99": quantile(0.99, "oscine_frame_seconds"),
        },
        ((None, GREEN), (0.064, YELLOW), (0.08, RED)),
    ),
    PanelSpec(
        "Load",
        "The larger of slots in use and time in use. Autoscaling aims at 0.7.",
        "percentunit",
        {"{{instance}} {{model}}": of("oscine:load:ratio")},
        ((None, GREEN), (0.7, YELLOW), (0.9, RED)),
    ),
    PanelSpec(
        "How speeches end",
        "stop: by themselves. length: the limit. runaway, error: see the alerts.",
        "cps",
        {"{{reason}}": f"sum by (reason) ({rate('oscine_finish_total')})"},
    ),
    PanelSpec(
        "Device memory",
        "Held by the engine, of that the prefix cache. It is constant after startup, but for that cache.",
        "bytes",
        {
            "engine {{instance}} {{model}}": of("oscine_memory_bytes"),
            "prefix cache {{instance}} {{model}}": of("oscine_prefix_cache_bytes"),
        },
    ),
    PanelSpec(
        "Prefix cache hits",
        "Share of prompts whose prefix was cached.",
        "percentunit",
        {
            "hits": f"sum({rate('oscine_prefix_cache_hits_total')}) / "
            f"(sum({rate('oscine_prefix_cache_hits_total')}) + sum({rate('oscine_prefix_cache_misses_total')}))"
        },
    ),
    PanelSpec(
        "Worker restarts",
        "In the last 15 minutes. Each one broke the streams of its device.",
        "short",
        {"{{instance}} {{model}}": f"increase({of('oscine_engine_restarts_total')}[15m])"},
    ),
)


def build() -> Dashboard:
    dashboard = (
        Dashboard("Oscine")
        .uid("oscine")
        .description("Speech servers. Generated by tools/grafana_dashboard.py.")
        .tags(["oscine"])
        .readonly()
        .refresh("10s")
        .time("now-30m", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(
            QueryVariable("instance")
            .datasource(SOURCE)
            .query("label_values(oscine_slots, instance)")
            .label("Server")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .current(VariableOption(text="All", value="$__all"))
        )
    )
    for spec in STATS:
        dashboard.with_panel(_filled(Stat().span(4).height(4), spec))
    for spec in GRAPHS:
        dashboard.with_panel(_filled(TimeSeries().span(12).height(8).min(0).fill_opacity(8), spec))
    return dashboard


def _filled(panel: Stat | TimeSeries, spec: PanelSpec) -> Stat | TimeSeries:
    steps = [Threshold(value=value, color=color) for value, color in spec.steps]
    panel.title(spec.title).description(spec.text).unit(spec.unit).datasource(SOURCE)
    panel.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    for ref_id, (legend, expression) in zip("ABCDEF", spec.queries.items(), strict=False):
        panel.with_target(Dataquery().ref_id(ref_id).expr(expression).legend_format(legend))
    return panel


def text() -> str:
    return JSONEncoder(sort_keys=True, indent=2).encode(build().build()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the file is stale")
    if not parser.parse_args().check:
        FILE.write_text(text(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != text():
        sys.exit("the dashboard is stale; run `.venv-linters/bin/python tools/grafana_dashboard.py`")


if __name__ == "__main__":
    main()
