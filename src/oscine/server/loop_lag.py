"""How late the event loop runs what is due: every stream waits at least that long for its next bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

INTERVAL_S = 0.02  # a shorter hold of the loop may be missed


async def watch_loop_lag(observe: Callable[[float], object]) -> None:
    """Measures until it is cancelled."""
    while True:
        due_s = time.monotonic() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        observe(max(0.0, time.monotonic() - due_s))
