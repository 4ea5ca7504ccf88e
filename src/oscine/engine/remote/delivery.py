"""A few threads that call the `deliver` callbacks of many utterances."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from oscine.types import AudioChunk

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class DeliveryQueue:
    """Chunks of one utterance that wait for its callback. `on_failure` is called once if the callback raises."""

    deliver: Callable[[AudioChunk], None]
    on_failure: Callable[[], None]
    chunks: deque[AudioChunk] = field(default_factory=deque)
    never_blocks: bool = False  # `deliver` may be called on any thread
    scheduled: bool = False  # waits for a thread, or has one
    failed: bool = False


class Delivery:
    """Each utterance's chunks are delivered in order, never two at a time; utterances take turns, one chunk each.

    A slow callback occupies one thread for one call. While fewer callbacks are slow than there are threads, no other
    utterance waits for them; otherwise each waits for at most one call of every slow one. A callback that never blocks
    is called at once, without another thread.
    """

    def __init__(self, threads: int) -> None:
        self._changed = threading.Condition()
        self._turns: deque[DeliveryQueue] = deque()
        self._closing = False
        # Daemons: a callback that never returns must not keep the program alive.
        self._threads = [threading.Thread(target=self._run, name="oscine-deliver", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, queue: DeliveryQueue, chunk: AudioChunk) -> None:
        if queue.never_blocks:
            try:
                queue.deliver(chunk)
                return
            except Exception:
                queue.never_blocks = False  # a thread calls it again, and reports the failure
        with self._changed:
            queue.chunks.append(chunk)
            if not queue.scheduled:
                self._schedule(queue)

    def close(self, timeout_s: float) -> None:
        """Delivers everything that was put, unless a callback takes longer than `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _schedule(self, queue: DeliveryQueue) -> None:
        queue.scheduled = bool(queue.chunks)
        if queue.scheduled:
            self._turns.append(queue)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._turns:
                    if self._closing:
                        return
                    self._changed.wait()
                queue = self._turns.popleft()
                chunk = queue.chunks.popleft()
            try:
                if not queue.failed:
                    queue.deliver(chunk)
            except Exception:
                _log.exception("a deliver callback failed; its utterance is cancelled")
                queue.failed = True
                queue.on_failure()
            with self._changed:
                self._schedule(queue)
