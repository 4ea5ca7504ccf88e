"""Runs one coroutine per request on an event loop of its own, and answers with its error if it fails. A stream sends
its responses itself, or its reader fetches them."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import numpy as np

from oscine.api import EventLoopThread
from oscine.deploy.tritonserver.tensors import ResponseStream
from oscine.errors import RequestError

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


_WAIT_S = 0.25  # a request without codes is answered after this time: whoever asks has to look for its own client
_ABANDONED_S = 60.0  # a stream that nobody asks for is cancelled
_Sent = tuple[Mapping[str, Any], bool]  # values of a response of the talker, and whether it is the last one


class PulledStreams:
    """Streams whose codes are fetched, by an id that their reader chose: every request gets one response, with the
    codes that are there. All methods may be called from any thread and return at once.

    Business-logic scripting needs this. Where a model reads several decoupled streams, Triton's Python backend (2.51,
    and the source of July 2026) can deadlock: a thread that exec() has just returned to holds the GIL and waits for the
    map of streams, the thread that fills streams holds the map and waits for a stream, and that stream's reader holds
    it and waits for the GIL. With one response for each request, nothing fills streams.
    """

    def __init__(self, streams: Streams, wait_s: float = _WAIT_S, abandoned_s: float = _ABANDONED_S) -> None:
        self._streams, self._wait_s, self._abandoned_s = streams, wait_s, abandoned_s
        self._open: dict[str, _PulledStream] = {}

    def start(self, stream_id: str, answer: Answer, max_frames: int, response: ResponseStream) -> None:
        """Starts a stream, and answers with its first codes."""

        def start() -> None:
            if stream_id in self._open:
                response.fail(RequestError(f"the stream {stream_id!r} is open; choose another id", "pull"))
                return
            stream = _PulledStream(lambda: self._open.pop(stream_id), self._wait_s, self._abandoned_s)
            self._open[stream_id] = stream
            stream.pull(max_frames, response)
            self._streams.start(stream_id, answer, stream)

        self._streams.call_soon(start)

    def pull(self, stream_id: str, max_frames: int, response: ResponseStream) -> None:
        def pull() -> None:
            if stream_id in self._open:
                self._open[stream_id].pull(max_frames, response)
            else:
                response.fail(RequestError(f"no stream {stream_id!r} is open; start it with a text", "pull"))

        self._streams.call_soon(pull)


class _PulledStream:
    """A ResponseStream that keeps what is sent until it is asked for. It lives on the event loop."""

    def __init__(self, on_close: Callable[[], object], wait_s: float, abandoned_s: float) -> None:
        self._on_close, self._wait_s, self._abandoned_s = on_close, wait_s, abandoned_s
        self._sent: deque[_Sent] = deque()
        self._error: Exception | None = None
        self._waiting: tuple[int, ResponseStream] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._abandoned = self._closed = False

    def pull(self, max_frames: int, response: ResponseStream) -> None:
        if self._waiting is not None:
            response.fail(RequestError("a request for this stream is waiting; send one at a time", "pull"))
            return
        self._waiting = (max_frames, response)
        self._set_timer(self._wait_s, self._answer_without_codes)
        self._answer()

    def send(self, values: Mapping[str, Any], *, final: bool) -> None:
        self._sent.append((values, final))
        self._answer()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._answer()

    def end(self) -> None:
        """Drops what was not asked for: the answer was cancelled."""
        self._close()
        if self._waiting is not None:
            self._answer_without_codes()

    def is_cancelled(self) -> bool:
        return self._abandoned

    def _answer(self) -> None:
        if self._waiting is None or self._closed:
            return
        if self._sent:
            max_frames, response = self._take_waiting()
            values, final = _take_joined(self._sent, max_frames)
            if final:
                self._close()
            response.send(values, final=True)
        elif self._error is not None:
            _, response = self._take_waiting()
            self._close()
            response.fail(self._error)

    def _answer_without_codes(self) -> None:
        _, response = self._take_waiting()
        response.end()

    def _take_waiting(self) -> tuple[int, ResponseStream]:
        assert self._waiting is not None
        waiting, self._waiting = self._waiting, None
        self._set_timer(self._abandoned_s, self._abandon)
        return waiting

    def _abandon(self) -> None:
        self._abandoned = True  # the watcher notices it and cancels the answer
        self._close()

    def _set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._closed else asyncio.get_running_loop().call_later(delay_s, call)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._on_close()
            if self._timer is not None:
                self._timer.cancel()


def _take_joined(sent: deque[_Sent], max_frames: int) -> _Sent:
    """Joins responses of one segment, up to `max_frames`; at least one response."""
    values, final = sent.popleft()
    codes, context = values["codes"], values["context_codes"]
    while sent and not values["segment_end"] and len(codes) + len(sent[0][0]["codes"]) <= max_frames:
        values, final = sent.popleft()
        codes = np.concatenate((codes, values["codes"]))
    return {**values, "codes": codes, "context_codes": context}, final
