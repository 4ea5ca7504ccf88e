"""Shows what should be changed about a reference clip, for the commands that clone one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def clip_warnings(console: Console) -> Iterator[None]:
    """Python would add its file and line."""
    from oscine.audio.checks import ClipWarning  # here: `--help` needs no numpy

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClipWarning)
        yield
    for one in caught:
        console.print(f"warning: {one.message}", style="yellow", markup=False, highlight=False, soft_wrap=True)
