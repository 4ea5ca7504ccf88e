"""The first worker of `oscine serve`, spawned before the settings are read: it imports torch meanwhile.

It touches no device and reads no weights until it is given an engine to build. Quick to import.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from oscine.commands.environment import without_settings
from oscine.engine.remote import WORKER
from oscine.process.child import Child


@contextlib.contextmanager
def early_worker() -> Iterator[Child | None]:
    """Ends with the body, used or not. None: no process can be spawned, which the first engine will report."""
    spawned = None
    with contextlib.suppress(OSError):
        spawned = Child(WORKER, "torch", environment=without_settings())
    try:
        yield spawned
    finally:
        if spawned is not None:
            spawned.end()
