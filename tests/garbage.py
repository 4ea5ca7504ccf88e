"""What requests leave for garbage collections, which pause a server that answers many of them."""

import functools
import gc
from collections.abc import Callable

REQUESTS = 20
_ROUNDS = 3


def garbage_of(request: Callable[[], object]) -> int:
    """The number of objects that so many requests leave. The first ones fill caches, and are not counted. A thread of
    an earlier test may leave some meanwhile, but not in every round, as a request does."""
    for _ in range(3):
        request()
    _freeze()
    for _ in range(_ROUNDS):
        if (left := _left_by(request)) < REQUESTS:
            break
    return left


def _left_by(request: Callable[[], object]) -> int:
    gc.collect()
    gc.disable()
    try:
        for _ in range(REQUESTS):
            request()
        return gc.collect()
    finally:
        gc.enable()


@functools.cache
def _freeze() -> None:
    """Collections skip what there was before, modules above all: a look at it takes most of a second."""
    gc.collect()
    gc.freeze()
