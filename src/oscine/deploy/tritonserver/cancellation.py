"""Notices clients that disconnected: Triton does not call back, it must be asked."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from oscine.deploy.tritonserver.backend import ResponseStream

_INTERVAL_S = 0.1  # between two questions about a request; each takes about 0.1 ms


class CancellationWatcher:
    """Asks about all watched requests on one thread, which sleeps while there are none."""

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._watched: dict[int, tuple[Callable[[], bool], Callable[[], None]]] = {}
        self._keys = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="oscine-cancellation", daemon=True)
        self._thread.start()

    def watch(self, is_cancelled: Callable[[], bool], on_cancel: Callable[[], None]) -> Callable[[], None]:
        """Calls `on_cancel` once, on the watcher's thread, when the request is cancelled. Returns a function that ends
        the watch; call it before the request's answer ends."""
        with self._changed:
            key = next(self._keys)
            self._watched[key] = (is_cancelled, on_cancel)
            self._changed.notify()

        def forget() -> None:
            with self._changed:
                self._watched.pop(key, None)

        return forget

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watched or self._stopping)
                self._changed.wait_for(lambda: self._stopping, self._interval_s)
                if self._stopping:
                    return
                keys = list(self._watched)
            for key in keys:
                self._ask(key)

    def _ask(self, key: int) -> None:
        with self._changed:  # held: a request whose answer has ended must not be asked about
            if key not in self._watched:
                return
            is_cancelled, on_cancel = self._watched[key]
            if not is_cancelled():
                return
            del self._watched[key]
        on_cancel()


class WatchedResponse:
    """A response that is watched until it ends: afterwards Triton must not be asked about its request. The first end
    counts."""

    def __init__(self, response: ResponseStream, watcher: CancellationWatcher, on_cancel: Callable[[], None]) -> None:
        self._response, self._ended = response, False
        self._forget = watcher.watch(response.is_cancelled, on_cancel)

    def send(self, values: Mapping[str, Any], *, final: bool) -> None:
        if self._may_send(last=final):
            self._response.send(values, final=final)

    def fail(self, error: Exception) -> None:
        if self._may_send(last=True):
            self._response.fail(error)

    def end(self) -> None:
        if self._may_send(last=True):
            self._response.end()

    def is_cancelled(self) -> bool:
        return self._response.is_cancelled()

    def _may_send(self, *, last: bool) -> bool:
        if self._ended:
            return False
        if last:
            self._ended = True
            self._forget()
        return True
