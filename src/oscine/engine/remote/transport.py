"""One end of the line between a front end and its engine process, and the threads that hand sound to listeners.

A zmq socket belongs to one thread: the one that calls `turn`. Every other thread only posts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from oscine.types import AudioChunk

MESSAGES_IN_ZMQ = 256  # each side; what does not fit waits in `Transport`, where it is counted in bytes
MESSAGES_PER_TURN = 256

_log = logging.getLogger(__name__)


class Transport:
    def __init__(self, address: str, *, bind: bool, lifeline: socket.socket | None = None) -> None:
        """`lifeline`: a socket pair's end that becomes readable when the process at its other end dies."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(MESSAGES_IN_ZMQ)
        (self._socket.bind if bind else self._socket.connect)(address)
        self._lifeline = lifeline
        self._wake_out, self._wake_in = os.pipe()
        self._poller = zmq.Poller()
        self._poller.register(self._wake_out, zmq.POLLIN)
        self._lock = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._woken = False
        self._closed = False

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def post(self, message: bytes) -> None:
        """From any thread; never waits."""
        with self._lock:
            self._outbox.append(message)
            self._waiting_bytes += len(message)
        self.wake()

    def wake(self) -> None:
        """Lets a waiting `turn` return."""
        with self._lock:
            if not self._woken and not self._closed:
                self._woken = True
                os.write(self._wake_in, b"!")

    def turn(self, timeout_s: float, *, heed_lifeline: bool = True) -> tuple[list[bytes], bool]:
        """Sends what can be sent and waits for something to happen. -> messages, whether the other side is gone."""
        lifeline = -1 if self._lifeline is None else self._lifeline.fileno()
        if lifeline >= 0:
            self._poller.register(lifeline, zmq.POLLIN if heed_lifeline else 0)
        self._send()
        # Asked for room only where something waits for it: there nearly always is.
        self._poller.register(self._socket, zmq.POLLIN | (zmq.POLLOUT if self._outbox else 0))
        events = dict(self._poller.poll(max(0, round(timeout_s * 1000))))
        if self._wake_out in events:
            with self._lock:
                os.read(self._wake_out, 1)
                self._woken = False
        self._send()
        return self._receive(), lifeline in events

    def close(self, linger_s: float = 0.0) -> None:
        """By the thread that calls `turn`. What zmq has taken may still leave for `linger_s`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_in)
            os.close(self._wake_out)
        self._socket.close(linger=round(linger_s * 1000))
        self._context.term()

    def _send(self) -> None:
        while self._outbox:
            try:
                self._socket.send(self._outbox[0], zmq.NOBLOCK)
            except zmq.Again:
                return
            with self._lock:
                self._waiting_bytes -= len(self._outbox.popleft())

    def _receive(self) -> list[bytes]:
        messages: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while len(messages) < MESSAGES_PER_TURN:
                messages.append(self._socket.recv(zmq.NOBLOCK))
        return messages


@dataclass(slots=True, eq=False)
class Listener:
    """One utterance's way out. The fields below are the delivery threads'."""

    deliver: Callable[[AudioChunk], None]
    chunks: deque[AudioChunk] = field(default_factory=deque)
    in_turn: bool = False  # waiting for a thread, or with one
    broken: bool = False  # its `deliver` raised


class Delivery:
    """Calls `deliver` of many listeners on a few threads: each listener's chunks in order and never two at a time; the
    listeners take turns, one chunk each. A slow `deliver` holds one thread for one call; while fewer listeners are
    slow than there are threads nobody waits for them, else everybody waits at most one call of each."""

    def __init__(self, threads: int, name: str, on_broken: Callable[[Listener], None]) -> None:
        self._on_broken = on_broken
        self._changed = threading.Condition()
        self._turns: deque[Listener] = deque()
        self._closing = False
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def put(self, listener: Listener, chunk: AudioChunk) -> None:
        with self._changed:
            listener.chunks.append(chunk)
            if not listener.in_turn:
                listener.in_turn = True
                self._turns.append(listener)
                self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Everything put before is delivered, unless a `deliver` takes longer than `timeout_s`."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._turns:
                    if self._closing:
                        return
                    self._changed.wait()
                listener = self._turns.popleft()
                chunk = listener.chunks.popleft()
            if not listener.broken:
                self._deliver(listener, chunk)
            with self._changed:
                listener.in_turn = bool(listener.chunks)
                if listener.in_turn:
                    self._turns.append(listener)
                    self._changed.notify()

    def _deliver(self, listener: Listener, chunk: AudioChunk) -> None:
        try:
            listener.deliver(chunk)
        except Exception:
            _log.exception("a listener could not take its audio; its utterance is cancelled")
            listener.broken = True
            self._on_broken(listener)
