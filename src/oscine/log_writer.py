"""A log handler that never waits. Writing to a pipe that nobody reads would block, and with it every stream."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time

_MAX_LINES = 10_000  # that wait to be written
_FLUSH_S = 1.0
_POLL_S = 0.005


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor on a thread of its own. Lines that do not fit are dropped, counted and
    reported. Lines are formatted by the caller's thread, whose context they show."""

    def __init__(self, descriptor: int, max_lines: int = _MAX_LINES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[bytes] = queue.Queue(max_lines)
        self._lost = 0
        # A daemon, and no Python file object: the process must end although this thread is blocked.
        threading.Thread(target=self._write, name="oscine-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except queue.Full:
            self._lost += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Waits until all lines are written, but not for a reader that is not there."""
        deadline_s = time.monotonic() + _FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            lost, self._lost = self._lost, 0
            if lost:
                message = "%d log lines were lost: they were not read in time"
                record = logging.LogRecord("oscine.log", logging.WARNING, "", 0, message, (lost,), None)
                line += f"{self.format(record)}\n".encode()
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:  # the reader has gone for good, or the disk is full
                self._lost += 1
            self._lines.task_done()
