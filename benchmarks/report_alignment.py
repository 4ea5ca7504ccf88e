"""The table of docs/guides/timestamps.md, from docs/results/alignment.json."""

from __future__ import annotations

from typing import Any

from benchmarks.report_table import Result, origin, paragraph, table

_ERRORS = "median / p95 / bias, ms"
_HEAD = ("model", "voice", "words", f"start: {_ERRORS}", f"end: {_ERRORS}", "CPU s per s of audio")


def alignment_table(result: Result) -> str:
    figures = result["figures"]
    rows = []
    for name, model in figures["models"].items():
        for voice, one in model["voices"].items():
            rows.append(
                [name, voice, str(one["words"]), _errors(one["start_ms"]), _errors(one["end_ms"]),
                 f"{one['cpu_s_per_audio_s']:.3f}"]
            )  # fmt: skip
    late = ", ".join(f"{name} {model['late_ms']:+} ms" for name, model in figures["models"].items())
    versions = f"ctranslate2 {result['versions']['ctranslate2']}, Festival {figures['synthesizers']['festival-slt']}"
    versions += f", espeak-ng {figures['synthesizers']['espeak-ng']}"
    about = f"Corrected lateness: {late}. One thread; {versions}. {origin(result)}"
    return f"{table(_HEAD, rows)}\n\n{paragraph(about)}"


def _errors(errors: dict[str, Any] | None) -> str:
    """espeak-ng reports no ends."""
    return f"{errors['median']} / {errors['p95']} / {errors['bias']:+}" if errors else ""
