"""What must hold after a soak or a burst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.server_trials import GAP_S

Row = dict[str, Any]

MAX_GROWTH_MIB = 24.0  # over half of a soak; allocators keep some pages
_MEMORY = ("front_end_mib", "engine_mib", "device_mib", "gpu_used_mib")


def slopes(samples: Sequence[Row], from_s: float) -> Row:
    """Least squares over the samples from `from_s` on: MiB per minute, and the growth over their time."""
    late = [sample for sample in samples if sample["at_s"] >= from_s]
    found: Row = {}
    for name in _MEMORY:
        points = [(sample["at_s"], sample[name]) for sample in late if sample[name] is not None]
        if len(points) < 3:
            continue
        at_s, mib = np.array(points).T
        per_s = float(np.polyfit(at_s - at_s[0], mib, 1)[0])
        found[name] = {"mib_per_minute": 60 * per_s, "growth_mib": per_s * float(at_s[-1] - at_s[0])}
    return found


def complaints_of_soak(row: Row) -> list[str]:
    before, after = row["alone"]["before"], row["alone"]["after"]
    deficit_ms, kills = (row["deficit_ms"] or {}).get("most", 0.0), len(row["kills"])
    checks = {
        f"unexpected results: {row['failures']}": not row["failures"],
        f"other bytes for the same seed: {[key for key in before if before[key] != after[key]]}": before == after,
        f"still held: {row['left']}": not any(value > 0 for value in row["left"].values()),
        f"{row['restarts_counted']} restarts for {kills} kills": row["restarts_counted"] == kills,
        f"a playback deficit of {deficit_ms:.0f} ms": deficit_ms <= 1e3 * (GAP_S + row["engine_starved_s"]),
        f"exit status {row['exit_status']}": row["exit_status"] == 0,
    }
    grown = [
        f"{name} grew by {slope['growth_mib']:.1f} MiB ({slope['mib_per_minute']:.2f} MiB a minute)"
        for name, slope in row["slopes"].items()
        if slope["growth_mib"] > MAX_GROWTH_MIB
    ]
    return [problem for problem, holds in checks.items() if not holds] + grown


def complaints_of_burst(row: Row, first_audio_limit_ms: float) -> list[str]:
    deficit_ms, first_ms = (row["deficit_ms"] or {}).get("most", 0.0), (row["first_audio_ms"] or {}).get("most", 0.0)
    most_tries = max(row["tries"])
    checks = {
        f"clients that were never heard: {row['results']}": set(row["results"]) == {"ok"},
        f"Retry-After was not true: a client needed {most_tries} tries": most_tries <= 3,
        f"first audio after {first_ms:.0f} ms": first_ms <= first_audio_limit_ms,
        f"a playback deficit of {deficit_ms:.0f} ms": deficit_ms <= 1e3 * GAP_S,
    }
    return [problem for problem, holds in checks.items() if not holds]
