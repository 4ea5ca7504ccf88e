"""Garbage collection of a process that must not pause."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 10_000  # Python: 700


def freeze_gc() -> None:
    """Excludes all objects made so far from later collections. Call it once, at the end of startup.

    A full collection visits every object: 200,000 of torch, 90,000 of the server's libraries. On a slow core that takes
    as long as a frame. Requests make objects that live as long as their streams, and hardly any garbage that needs a
    collection: 250 collections during 1,500 requests took up to 15 ms each and found nothing. So they are made rarer,
    but not switched off: cycles of libraries must not grow for ever. Ours are broken up (`errors.forget_frames`).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


@contextmanager
def importing() -> Iterator[None]:
    """Does not collect while the body imports modules, and excludes their objects from later collections.

    Importing torch makes 200,000 objects and hardly any garbage; collections took a tenth of that time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
