"""Times of a GPU between device events, and the bandwidth of its memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

_COPIED_BYTES = 2**31


def median_ms(replay: Callable[[], object], repeats: int = 30) -> float:
    """After a warm-up."""
    for _ in range(3):
        replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per second of a large device-to-device copy, reads plus writes."""
    a = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * _COPIED_BYTES / (median_ms(lambda: b.copy_(a), 10) / 1e3)
