"""Streams whose codes are fetched: every request gets one response, with the codes that are there.

Business-logic scripting needs this. Where a model reads several decoupled streams, Triton's Python backend (2.51, and
the source of July 2026) can deadlock: a thread that exec() has just returned to holds the GIL and waits for the map of
streams, the thread that fills streams holds the map and waits for a stream, and that stream's reader holds it and waits
for the GIL. With one response for each request, nothing fills streams.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oscine.deploy.tritonserver.backend import ResponseStream
from oscine.deploy.tritonserver.streams import Answer, Streams
from oscine.errors import RequestError

_WAIT_S = 0.25  # a request without codes is answered after this time: whoever asks has to look for its own client
_ABANDONED_S = 60.0  # a stream that nobody asks for is cancelled
_Sent = tuple[Mapping[str, Any], bool]  # values of a response of the talker, and whether it is the last one


class PulledStreams:
    """Open streams by an id that their reader chose. All methods may be called from any thread and return at once."""

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
