"""A log handler that never waits. Writing to a pipe that nobody reads would block all streams."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque

_MAX_LINES = 10_000  # maximum number of unwritten lines
_BATCH_LINES = 100  # per system call
_BATCH_S = 0.01  # lines within this time are written together: waking the thread costs more than a line
_FLUSH_S = 1.0
_POLL_S = 0.005


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor on a thread of its own. Lines beyond the maximum are dropped, counted and
    reported. The caller's thread formats each line, because its context is shown."""

    def __init__(self, descriptor: int, max_lines: int = _MAX_LINES) -> None:
        super().__init__()
        self._descriptor, self._max_lines = descriptor, max_lines
        self._lines: deque[bytes] = deque()  # not yet written
        self._waiting = threading.Event()  # set by new lines, cleared before lines are written
        self._lost = 0
        # A daemon, and no Python file object: the process must end although this thread is blocked.
        threading.Thread(target=self._write, name="oscine-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        except Exception:
            self.handleError(record)
            return
        if len(self._lines) >= self._max_lines:
            self._lost += 1
            return
        self._lines.append(line)
        if not self._waiting.is_set():
            self._waiting.set()

    def flush(self) -> None:
        """Waits until all lines are written, but only briefly if nobody reads them."""
        deadline_s = time.monotonic() + _FLUSH_S
        while self._lines and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _write(self) -> None:
        while True:
            self._waiting.wait()
            time.sleep(_BATCH_S)
            self._waiting.clear()
            while self._lines:
                self._write_batch()

    def _write_batch(self) -> None:
        count = min(_BATCH_LINES, len(self._lines))
        batch = b"".join(self._lines[index] for index in range(count))
        lost, self._lost = self._lost, 0
        if lost:
            message = "%d log lines were lost: they were not read in time"
            record = logging.LogRecord("oscine.log", logging.WARNING, "", 0, message, (lost,), None)
            batch += f"{self.format(record)}\n".encode()
        try:
            while batch:
                batch = batch[os.write(self._descriptor, batch) :]
        except OSError:  # the reader is gone or the disk is full: the other lines cannot be written either
            count = len(self._lines)
            self._lost += count
        for _ in range(count):
            self._lines.popleft()
