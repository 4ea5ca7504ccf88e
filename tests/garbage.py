"""What requests leave for garbage collections, which pause a server that answers many of them."""

import gc
from collections.abc import Callable

_ROUNDS = 3


def garbage_of(request: Callable[[], object]) -> int:
    """The number of objects that 20 requests leave. The first ones fill caches, and are not counted. A thread of an
    earlier test may leave some meanwhile, so the least of some rounds counts: a request's own are left in each."""
    for _ in range(3):
        request()
    return min(_left_by_twenty(request) for _ in range(_ROUNDS))


def _left_by_twenty(request: Callable[[], object]) -> int:
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            request()
        return gc.collect()
    finally:
        gc.enable()
