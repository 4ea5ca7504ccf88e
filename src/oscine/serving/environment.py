"""Environment variables of `oscine serve`, and its first worker, which is spawned before the settings are read.

Quick to import: settings.py is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from oscine.engine.remote import WORKER
from oscine.process.child import Child

ENV_PREFIX = "OSCINE_SERVE_"


def variable_of(path: str) -> str:
    """ "engine.slots" -> its variable."""
    return ENV_PREFIX + path.upper().replace(".", "__")


def default_voices_dir() -> str:
    return f"{os.environ.get('XDG_DATA_HOME') or '~/.local/share'}/oscine/voices"


def without_settings() -> dict[str, str]:
    """The environment without the server's settings, some of which are secret."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}


@contextlib.contextmanager
def early_worker() -> Iterator[Child | None]:
    """A worker that imports torch meanwhile. It touches no device and reads no weights until it is given an engine to
    build, and ends with the body, used or not. Yields None if no process can be spawned, which the first engine will
    report."""
    spawned = None
    with contextlib.suppress(OSError):
        spawned = Child(WORKER, "torch", environment=without_settings())
    try:
        yield spawned
    finally:
        if spawned is not None:
            spawned.end()
