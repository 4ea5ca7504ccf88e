"""Times of requests in one process: when each passed a named point on its way.

The seed identifies a request in all processes. Times are readings of time.perf_counter, one clock for all processes of
a Linux machine.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

clock = time.perf_counter


class ClockPoints:
    """Times of this process, by seed and name; the first of each name counts."""

    def __init__(self) -> None:
        self.times_s: dict[int, dict[str, float]] = {}

    def mark(self, seed: int | None, name: str, at_s: float | None = None) -> None:
        if seed is not None:
            self.times_s.setdefault(seed, {}).setdefault(name, clock() if at_s is None else at_s)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.times_s), encoding="utf-8")


def read_points(*paths: Path) -> dict[int, dict[str, float]]:
    """All times of all processes, by seed."""
    joined: dict[int, dict[str, float]] = {}
    for path in paths:
        for seed, times_s in json.loads(path.read_text(encoding="utf-8")).items():
            joined.setdefault(int(seed), {}).update(times_s)
    return joined
