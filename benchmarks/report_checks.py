"""Tables of docs/benchmarks.md: targets of 1.7B on an H200, and what was checked on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.report_table import Result, Row, blocks, paragraph, table, words_table

# --- targets of 1.7B on an H200 ---


@dataclass(frozen=True, slots=True)
class Target:
    """A target for each figure of one result, one for each load. Lower is better unless `higher`.

    `path`: the keys of a figure, with `{}` for the last word of the load; keys with + between them are added up."""

    what: str
    loads: tuple[str, ...]
    limits: tuple[float, ...]
    result: str
    path: str
    higher: bool = False
    scale: float = 1.0

    def row(self, figures: Row) -> list[str]:
        values = [self._measured(figures, load) for load in self.loads]
        pairs = zip(self.loads, self.limits, values, strict=True)
        missed = [load for load, limit, value in pairs if (value < limit if self.higher else value > limit)]
        verdict = f"missed: {', '.join(missed)}" if missed else "met"
        shown = [" / ".join(map(_shown, row)) for row in (self.limits, values)]
        return [f"{self.what}: {' / '.join(self.loads)}", *shown, verdict]

    def _measured(self, figures: Row, load: str) -> float:
        found: Any = figures
        for key in self.path.format(load.split()[-1]).split("."):
            if isinstance(found, list):  # loads on a server
                found = {f"{one['load']['kind']} {one['load']['value']:g}": one for one in found}
            found = sum(found[one] for one in key.split("+")) if "+" in key else found[key]
        return float(found or 0.0) * self.scale


def _shown(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


_SERVER, _STREAMS, _PARTS = "server-gpu-1b7-preset", ("1", "8", "32", "128"), ("talker", "predictor", "codec")
_FIRST, _ADMITTED = "loads.closed {}.first_audio_ms.p95", "prompt_us+session_us+submit_us+loop_us+runner_us"
_FRAME = "1b7.cuda.frames."
TARGETS = (
    Target("ms per frame, streams", _STREAMS, (2.5, 2.9, 4.4, 7.5), "frame", _FRAME + "{}.tick_ms"),
    Target("its parts with 8 streams, ms", _PARTS, (1.1, 1.4, 0.45), "frame", _FRAME + "8.{}_ms"),
    Target("its parts with 128 streams, ms", _PARTS, (2.0, 3.3, 2.1), "frame", _FRAME + "128.{}_ms"),
    Target(
        "x real time over HTTP, callers", _STREAMS, (28, 190, 480, 1100), _SERVER, "loads.closed {}.x_real_time", True
    ),
    Target("first audio of one caller, ms", ("p50", "p95"), (6.5, 8), _SERVER, "loads.closed 1.first_audio_ms.{}"),
    Target("first audio p95, ms, callers", ("8", "32", "64", "128"), (12, 25, 35, 60), _SERVER, _FIRST),
    Target(
        "first audio p95, ms, requests/s", ("20", "100", "150", "230"), (9, 15, 22, 50), _SERVER,
        _FIRST.replace("closed", "open"),
    ),
    Target(
        "highest rate without a gap, first audio p95 <= 50 ms", ("requests/s",), (230,), f"{_SERVER}-search",
        "search.rate_per_s", True,
    ),
    # Everything before the frame's launch.
    Target(
        "admission on the host, us each, at once", ("1", "32", "128"), (100, 100, 100), "admission-gpu-1b7",
        "newcomers.{}." + _ADMITTED,
    ),
    Target(
        "prefill of prompts of 400 rows, s, prompts", ("128",), (0.3,), "admission-gpu-rows400-1b7",
        "prefilled_ms.{}", scale=1e-3,
    ),
    Target("start to ready, s, kernels", ("cached", "compiled anew"), (8, 40), "startup-gpu-1b7", "{}.server"),
    Target(
        "front end's share of the first byte, p95, ms, requests/s", ("1", "300"), (1, 3), "front-end",
        "loads.{} requests/s.front_end_ms.p95",
    ),
)  # fmt: skip


def targets_section(find: Callable[[str], Result | None]) -> str:
    """Targets whose loads were not measured are left out."""
    rows = []
    for target in TARGETS:
        result = find(target.result)
        if result is not None and result.get("machine") == "NVIDIA H200":
            with suppress(KeyError):
                rows.append(target.row(result["figures"]))
    how = """What 1.7B should reach on an H200, and what the results below say. The parts of a frame have targets of
    their own; they are measured one by one, and take less time together."""
    made = blocks("## Targets", paragraph(how), table(["figure", "target", "measured", "verdict"], rows))
    return made if rows else ""


# --- what was checked on a GPU ---


def checks_section(rows: Sequence[Sequence[str]]) -> str:
    head = ["check", "outcome", "machine, commit, date", "command"]
    how = "Runs that check correctness; they measure no times."
    return blocks("## What was checked on a GPU", how, words_table(head, rows))


def check_row(name: str, result: Result) -> list[str]:
    what, outcome = CHECKS[name]
    where = ", ".join(result[part] for part in ("machine", "commit", "date"))
    return [what, outcome(result["figures"]), where, f"`{result['command']}`"]


def _tiled(figures: Row) -> str:
    checks = _checks(figures["tiled"])
    chains = [one.get("ok same bits", False) for key, one in checks.items() if key.startswith("wgmma as mma")]
    sizes = [held for one in checks.values() for key, held in one.items() if key.endswith("has the bits of few")]
    same = f"equal bits in {sum(chains)} of {len(chains)} chains and {sum(sizes)} of {len(sizes)} products"
    return f"{_held(figures['tiled'])}; {same}"


def _recordings(figures: Row) -> str:
    names = {"demo": "the demo voice", "1b7": "1.7B", "0b6": "0.6B"}
    return "; ".join(
        f"{names[size]}, {callers} callers: {one['equal']} of {one['recordings']}"
        for size, loads in figures.items()
        if size in names
        for callers, one in loads.items()
    )


def _sanitizer(figures: Row) -> str:
    runs = {name: one for name, one in figures.items() if isinstance(one, dict)}
    planted = "found" if runs.pop("planted")["findings"] else "NOT FOUND"
    outcomes = [f"{name}: {_findings(one)} in {one['launches']} launches" for name, one in runs.items()]
    return "; ".join([*outcomes, f"planted error: {planted}"])


def _findings(run: Row) -> str:
    return "no summary" if run["findings"] is None else f"{run['findings']} findings"


def _checks(figures: Row) -> dict[str, Row]:
    return {key: one for key, one in figures.items() if isinstance(one, dict) and key != "failures"}


def _held(figures: Row) -> str:
    """A section whose process crashed or had no time left has only some of its checks."""
    checks, failures = len(_checks(figures)), figures.get("failures", {})
    parts = [f"{checks - len(failures)} of {checks} checks hold"]
    parts += [f"failed: {', '.join(failures)}"] if failures else []
    parts += [f"not run: {', '.join(figures['skipped'])} and later ones"] if figures.get("skipped") else []
    parts += [f"the process ended with {figures['exit']}"] if figures["exit"] != 0 else []
    return "; ".join(parts)


_SANITIZER = ("the CUDA kernels under compute-sanitizer", _sanitizer)
# What was checked and how it ended, by the name of the result.
CHECKS: dict[str, tuple[str, Callable[[Row], str]]] = {
    "gpu-tests": (
        "the tests that need a GPU",
        lambda figures: ", ".join(f"{figures[name]} {name}" for name in ("passed", "failed", "skipped")),
    ),
    "same-recordings": ("recordings under load that equal those made alone, byte for byte", _recordings),
    "cuda-checks": (
        "CUDA kernels against Triton's, and a row alone against the row in a batch",
        lambda figures: _held(figures["checks"]),
    ),
    "cuda-tiled": ("wgmma against mma, and products of many rows against those of few", _tiled),
    "sanitize": _SANITIZER,
    "sanitize-memcheck": _SANITIZER,
}
