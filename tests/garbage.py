"""What requests leave for garbage collections, which pause a server that answers many of them."""

import gc
from collections.abc import Callable


def garbage_of(request: Callable[[], object]) -> int:
    """The number of objects that 20 requests leave. The first ones fill caches, and are not counted."""
    for _ in range(3):
        request()
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            request()
        return gc.collect()
    finally:
        gc.enable()
