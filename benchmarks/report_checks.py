"""The section of docs/benchmarks.md about what was checked on a GPU: how tests, checks of kernels and the sanitizer
ended, each with its commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.report_table import Result, Row, table


def checks_section(rows: Sequence[Sequence[str]]) -> str:
    head = ["check", "outcome", "machine, commit, date", "command"]
    how = "Runs that check correctness; they measure no times."
    return "\n\n".join(["## What was checked on a GPU", how, table(head, rows).replace("---:", "---")])


def _row(what: str, outcome: str, result: Result) -> list[str]:
    where = ", ".join(result[name] for name in ("machine", "commit", "date"))
    return [what, outcome, where, f"`{result['command']}`"]


def gpu_tests_row(result: Result) -> list[str]:
    """The row of benchmarks/gpu_tests.py."""
    figures = result["figures"]
    return _row(
        "the tests that need a GPU",
        ", ".join(f"{figures[name]} {name}" for name in ("passed", "failed", "skipped")),
        result,
    )


def kernels_row(result: Result) -> list[str]:
    """The row of the section `checks` of benchmarks/cuda_chain.py."""
    return _row(
        "CUDA kernels against Triton's, and a row alone against the row in a batch",
        _held(result["figures"]["checks"]),
        result,
    )


def tiled_row(result: Result) -> list[str]:
    """The row of the section `tiled`."""
    figures = result["figures"]["tiled"]
    checks = _checks(figures)
    chains = [one.get("ok same bits", False) for key, one in checks.items() if key.startswith("wgmma as mma")]
    sizes = [held for one in checks.values() for key, held in one.items() if key.endswith("has the bits of few")]
    same = f"equal bits in {sum(chains)} of {len(chains)} chains and {sum(sizes)} of {len(sizes)} products"
    return _row(
        "wgmma against mma, and products of many rows against those of few", f"{_held(figures)}; {same}", result
    )


def recordings_row(result: Result) -> list[str]:
    """The row of benchmarks/same_recordings.py."""
    names = {"demo": "the demo voice", "1b7": "1.7B", "0b6": "0.6B"}
    outcomes = [
        f"{names[size]}, {callers} callers: {one['equal']} of {one['recordings']}"
        for size, loads in result["figures"].items()
        if size in names
        for callers, one in loads.items()
    ]
    return _row("recordings under load that equal those made alone, byte for byte", "; ".join(outcomes), result)


def sanitizer_row(result: Result) -> list[str]:
    """The row of benchmarks/sanitize.py."""
    runs = {name: one for name, one in result["figures"].items() if isinstance(one, dict)}
    planted = "found" if runs.pop("planted")["findings"] else "NOT FOUND"
    outcomes = [f"{name}: {_findings(one)} in {one['launches']} launches" for name, one in runs.items()]
    return _row("the CUDA kernels under compute-sanitizer", "; ".join([*outcomes, f"planted error: {planted}"]), result)


def _findings(run: Row) -> str:
    return "no summary" if run["findings"] is None else f"{run['findings']} findings"


def _checks(section: Row) -> dict[str, Row]:
    return {key: one for key, one in section.items() if isinstance(one, dict) and key != "failures"}


def _held(section: Row) -> str:
    """A section whose process crashed or had no time left has only some of its checks."""
    checks, failures = len(_checks(section)), section.get("failures", {})
    parts = [f"{checks - len(failures)} of {checks} checks hold"]
    parts += [f"failed: {', '.join(failures)}"] if failures else []
    parts += [f"not run: {', '.join(section['skipped'])} and later ones"] if section.get("skipped") else []
    parts += [f"the process ended with {section['exit']}"] if section["exit"] != 0 else []
    return "; ".join(parts)


# By the name of the result.
CHECK_ROWS: dict[str, Callable[[Result], list[str]]] = {
    "gpu-tests": gpu_tests_row,
    "same-recordings": recordings_row,
    "cuda-checks": kernels_row,
    "cuda-tiled": tiled_row,
    "sanitize": sanitizer_row,
    "sanitize-memcheck": sanitizer_row,
}
