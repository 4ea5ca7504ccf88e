"""Garbage collection of a process that must not pause."""

from __future__ import annotations

import gc


def freeze_gc() -> None:
    """Excludes all objects made so far from later collections. Call it once, at the end of startup.

    A full collection visits every object: 200,000 of torch, 90,000 of the server's libraries. On a slow core that takes
    as long as a frame.
    """
    gc.collect()
    gc.freeze()
