"""A section of docs/benchmarks.md: the targets of 1.7B on an H200, and what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.report_table import Result, Row, paragraph, table


@dataclass(frozen=True, slots=True)
class Target:
    """A target for each figure of one result, one for each load. Lower is better unless `higher`."""

    what: str
    loads: tuple[str, ...]
    limits: tuple[float, ...]
    result: str
    measured: Callable[[Row], Sequence[float]]
    higher: bool = False

    def row(self, figures: Row) -> list[str]:
        values = self.measured(figures)
        pairs = zip(self.loads, self.limits, values, strict=True)
        missed = [load for load, limit, value in pairs if (value < limit if self.higher else value > limit)]
        verdict = f"missed: {', '.join(missed)}" if missed else "met"
        shown = [" / ".join(map(_shown, row)) for row in (self.limits, values)]
        return [f"{self.what}: {' / '.join(self.loads)}", *shown, verdict]


def _shown(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _frames(name: str, rows: Sequence[str]) -> Callable[[Row], list[float]]:
    return lambda figures: [figures["1b7"]["cuda"]["frames"][count][name] for count in rows]


def _parts(rows: str) -> Callable[[Row], list[float]]:
    return lambda figures: [
        figures["1b7"]["cuda"]["frames"][rows][f"{part}_ms"] for part in ("talker", "predictor", "codec")
    ]


def _load(figures: Row, kind: str, value: float) -> Row:
    return next(row for row in figures["loads"] if row["load"] == {"kind": kind, "value": value})


def _first_audio_p95(kind: str, values: Sequence[float]) -> Callable[[Row], list[float]]:
    return lambda figures: [_load(figures, kind, value)["first_audio_ms"]["p95"] for value in values]


def _admission_us(figures: Row) -> list[float]:
    """Everything before the frame's launch."""
    stages = ("prompt_us", "session_us", "submit_us", "loop_us", "runner_us")
    return [sum(figures["newcomers"][count][stage] for stage in stages) for count in ("1", "32", "128")]


_SERVER, _STREAMS, _PARTS = "server-gpu-1b7-preset", ("1", "8", "32", "128"), ("talker", "predictor", "codec")
TARGETS = (
    Target("ms per frame, streams", _STREAMS, (2.5, 2.9, 4.4, 7.5), "frame", _frames("tick_ms", _STREAMS)),
    Target("its parts with 8 streams, ms", _PARTS, (1.1, 1.4, 0.45), "frame", _parts("8")),
    Target("its parts with 128 streams, ms", _PARTS, (2.0, 3.3, 2.1), "frame", _parts("128")),
    Target(
        "x real time over HTTP, callers", _STREAMS, (28, 190, 480, 1100), _SERVER,
        lambda figures: [_load(figures, "closed", int(count))["x_real_time"] for count in _STREAMS], higher=True,
    ),
    Target(
        "first audio of one caller, ms", ("p50", "p95"), (6.5, 8), _SERVER,
        lambda figures: [_load(figures, "closed", 1)["first_audio_ms"][share] for share in ("p50", "p95")],
    ),
    Target(
        "first audio p95, ms, callers", ("8", "32", "64", "128"), (12, 25, 35, 60), _SERVER,
        _first_audio_p95("closed", (8, 32, 64, 128)),
    ),
    Target(
        "first audio p95, ms, requests/s", ("20", "100", "150", "230"), (9, 15, 22, 50), _SERVER,
        _first_audio_p95("open", (20, 100, 150, 230)),
    ),
    Target(
        "highest rate without a gap, first audio p95 <= 50 ms", ("requests/s",), (230,), f"{_SERVER}-search",
        lambda figures: [figures["search"]["rate_per_s"] or 0.0], higher=True,
    ),
    Target(
        "admission on the host, us each, at once", ("1", "32", "128"), (100, 100, 100), "admission-gpu-1b7",
        _admission_us,
    ),
    Target(
        "prefill of prompts of 400 rows, s, prompts", ("128",), (0.3,), "admission-gpu-rows400-1b7",
        lambda figures: [figures["prefilled_ms"]["128"] / 1e3],
    ),
    Target(
        "start to ready, s, kernels", ("cached", "compiled anew"), (8, 40), "startup-gpu-1b7",
        lambda figures: [figures[kind]["server"] for kind in ("cached", "anew")],
    ),
    Target(
        "front end's share of the first byte, p95, ms, requests/s", ("1", "300"), (1, 3), "front-end",
        lambda figures: [figures["loads"][f"{rate} requests/s"]["front_end_ms"]["p95"] for rate in (1, 300)],
    ),
)  # fmt: skip


def targets_section(find: Callable[[str], Result | None]) -> str:
    """Targets whose loads were not measured are left out."""
    rows = []
    for target in TARGETS:
        result = find(target.result)
        if result is not None and result.get("machine") == "NVIDIA H200":
            with suppress(KeyError, StopIteration):
                rows.append(target.row(result["figures"]))
    if not rows:
        return ""
    how = """What 1.7B should reach on an H200, and what the results below say. The parts of a frame have targets of
    their own; they are measured one by one, and take less time together."""
    return "\n\n".join(["## Targets", paragraph(how), table(["figure", "target", "measured", "verdict"], rows)])
