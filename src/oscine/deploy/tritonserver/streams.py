"""Runs one coroutine per request on an event loop of its own, and answers with its error if it fails."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from oscine.api import EventLoopThread
from oscine.deploy.tritonserver.backend import ResponseStream

_INTERVAL_S = 0.1  # between two questions about a request; each takes about 0.1 ms
Answer = Callable[[ResponseStream], Coroutine[Any, Any, None]]


class Streams:
    """Requests that are being answered. All methods may be called from any thread."""

    def __init__(self, watcher: CancellationWatcher | None = None) -> None:
        self._watcher = watcher or CancellationWatcher()
        self._running: dict[str, list[asyncio.Task[None]]] = {}  # by the request's id, which clients choose
        self._event_loop = EventLoopThread("oscine-streams")

    def start(self, request_id: str, answer: Answer, response: ResponseStream) -> None:
        """Answers a request. `answer` sends everything, its last response with `final`."""
        self.call_soon(lambda: self._start(request_id, answer, response))

    def cancel(self, request_id: str) -> None:
        """Unknown and ended requests are ignored: a cancellation and an end may cross. So are those without an id."""

        def cancel() -> None:
            for task in self._running.get(request_id, ()) if request_id else ():
                task.cancel()

        self.call_soon(cancel)

    def call_soon(self, call: Callable[[], object]) -> None:
        """Calls it on the event loop, after what was asked for before."""
        self._event_loop.loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """Cancels what is running."""
        self._event_loop.stop()
        self._watcher.stop()

    def _start(self, request_id: str, answer: Answer, response: ResponseStream) -> None:
        task = self._event_loop.loop.create_task(self._answer(answer, response))
        self._running.setdefault(request_id, []).append(task)
        task.add_done_callback(lambda task: self._forget(request_id, task))

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        tasks = self._running[request_id]
        tasks.remove(task)
        if not tasks:
            del self._running[request_id]

    async def _answer(self, answer: Answer, response: ResponseStream) -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            self.call_soon(task.cancel)

        watched = WatchedResponse(response, self._watcher, cancel)
        try:
            await answer(watched)
        except asyncio.CancelledError:
            watched.end()
        except Exception as error:
            watched.fail(error)


# --- Notices clients that disconnected: Triton does not call back, it must be asked.


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
