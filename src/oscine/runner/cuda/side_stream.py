"""A second stream of the device: its work runs beside that of the current stream. On a CPU there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HIGH_PRIORITY = -1


class SideStream:
    """The caller says what waits for what; work within a stream runs in order."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device, priority=HIGH_PRIORITY) if device.type == "cuda" else None
        if self.stream is not None:
            self._current_done = torch.cuda.Event()

    @contextmanager
    def after_current(self) -> Iterator[None]:
        """What the body enqueues runs here, after everything that the current stream has so far."""
        if self.stream is None:
            yield
            return
        current = torch.cuda.current_stream()
        self._current_done.record(current)
        self._current_done.wait(self.stream)
        torch.cuda.set_stream(self.stream)  # torch.cuda.stream() would look up the current device and stream again
        try:
            yield
        finally:
            torch.cuda.set_stream(current)

    def event(self) -> torch.cuda.Event | None:
        """The device reaches it after everything that is here so far."""
        return None if self.stream is None else self.stream.record_event()

    def reads(self, tensors: Iterable[Tensor]) -> None:
        """Work here reads them: their memory is not used again before that has ended."""
        if self.stream is not None:
            for tensor in tensors:
                tensor.record_stream(self.stream)

    def join(self) -> None:
        """The current stream waits for everything that is here so far."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


def wait_for(event: torch.cuda.Event | None) -> None:
    """The current stream waits; None on a CPU."""
    if event is not None:
        event.wait()
