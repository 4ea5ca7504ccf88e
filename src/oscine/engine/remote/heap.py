"""Python's garbage collector stops a process while it looks at every object. torch alone brings two hundred thousand,
and the server's libraries ninety thousand: on a slow core that takes as long as a frame, in the middle of speech."""

from __future__ import annotations

import gc


def freeze_gc() -> None:
    """To be called once, when a process has all that it needs: later collections look at what came since."""
    gc.collect()
    gc.freeze()
