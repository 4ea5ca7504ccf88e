"""Runs one coroutine per request on an event loop of its own, and answers with its error if it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from oscine.deploy.tritonserver.backend import ResponseStream
from oscine.deploy.tritonserver.cancellation import CancellationWatcher, WatchedResponse

Answer = Callable[[ResponseStream], Coroutine[Any, Any, None]]


class Streams:
    """Requests that are being answered. All methods may be called from any thread."""

    def __init__(self, watcher: CancellationWatcher | None = None) -> None:
        self._watcher = watcher or CancellationWatcher()
        self._running: dict[str, list[asyncio.Task[None]]] = {}  # by the request's id, which clients choose
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._main(),), name="oscine-streams", daemon=True)
        self._thread.start()
        self._loop, self._stopped = self._started.result()

    def start(self, request_id: str, answer: Answer, response: ResponseStream) -> None:
        """`answer` sends everything, its last response with `final`."""
        self.call_soon(lambda: self._start(request_id, answer, response))

    def cancel(self, request_id: str) -> None:
        """Unknown and ended requests are ignored: a cancellation and an end may cross. So are those without an id."""

        def cancel() -> None:
            for task in self._running.get(request_id, ()) if request_id else ():
                task.cancel()

        self.call_soon(cancel)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Calls it on the event loop, after what was asked for before."""
        self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        """Cancels what is running."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._watcher.stop()

    async def _main(self) -> None:
        stopped = asyncio.Event()
        self._started.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()
        tasks = [task for tasks in self._running.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, request_id: str, answer: Answer, response: ResponseStream) -> None:
        task = self._loop.create_task(self._answer(answer, response))
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
            self._loop.call_soon_threadsafe(task.cancel)

        watched = WatchedResponse(response, self._watcher, cancel)
        try:
            await answer(watched)
        except asyncio.CancelledError:
            watched.end()
        except Exception as error:
            watched.fail(error)
