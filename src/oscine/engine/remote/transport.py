"""One end of the socket between a front end and its worker: length-prefixed messages, one thread per direction.

Sending and posting never block: what the socket does not take waits in memory for the writing thread, counted in bytes.
When the peer's process ends, everything it has sent is received first, then the disconnect is reported.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable

_LENGTH = struct.Struct("<Q")
_BATCH = 64  # messages per system call: the chunks of one tick leave together
_BUFFER_BYTES = 2**18
_DONT_WAIT = getattr(socket, "MSG_DONTWAIT", None)  # None: the writing thread sends every message


class Transport:
    """Calls `on_message`, which may be replaced, and `on_disconnect` (the peer is gone) on the reading thread."""

    def __init__(
        self, connection: socket.socket, on_message: Callable[[bytes], None], on_disconnect: Callable[[], None]
    ) -> None:
        self.on_message = on_message
        self._connection, self._on_disconnect = connection, on_disconnect
        self._changed = threading.Condition()
        self._outbox: deque[bytes] = deque()  # with their lengths; the first may be the rest of a message
        self._mid_message = False  # a message is partly sent, or the writing thread is sending
        self._closing = False
        self.unsent_bytes = 0
        self._reader = threading.Thread(target=self._read, name="oscine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="oscine-writer", daemon=True)
        self._reader.start()
        self._writer.start()

    def send(self, message: bytes, *, overtake: bool = False) -> None:
        """Sends on the caller's thread, so that no other thread must wake up first. Callable from any thread. With
        `overtake`, the message goes before those in the outbox."""
        packed = _LENGTH.pack(len(message)) + message
        with self._changed:
            if self._mid_message or _DONT_WAIT is None or (self._outbox and not overtake):
                self._put(packed)
                return
            try:
                sent = self._connection.send(packed, _DONT_WAIT)
            except BlockingIOError:
                self._put(packed)
            except OSError:  # the peer is gone, which the reader reports
                return
            else:
                if sent < len(packed):
                    self._mid_message = True
                    self._put(packed[sent:], first=True)

    def post(self, message: bytes) -> None:
        """Adds a message to the outbox; the writing thread sends many at once. Callable from any thread."""
        with self._changed:
            self._put(_LENGTH.pack(len(message)) + message)

    def _put(self, packed: bytes, *, first: bool = False) -> None:
        (self._outbox.appendleft if first else self._outbox.append)(packed)
        self.unsent_bytes += len(packed)
        self._changed.notify()

    def wait_disconnected(self, timeout_s: float) -> None:
        """Waits until everything that the peer sent has been received."""
        self._reader.join(timeout_s)

    def close(self, linger_s: float = 0.0) -> None:
        """Sends the outbox for up to `linger_s`, then disconnects. Not callable on the reading thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._writer.join(linger_s)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._writer.join()
        self._reader.join()
        self._connection.close()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the peer is gone, which the reader reports
            while batch := self._next():
                self._connection.sendall(b"".join(batch))
                with self._changed:
                    self._mid_message = False
                    self.unsent_bytes -= sum(map(len, batch))

    def _next(self) -> list[bytes]:
        """Returns the next messages to send; none when the transport is closing and everything was sent."""
        with self._changed:
            while not self._outbox and not self._closing:
                self._changed.wait()
            self._mid_message = True
            return [self._outbox.popleft() for _ in range(min(_BATCH, len(self._outbox)))]

    def _read(self) -> None:
        try:
            with contextlib.suppress(OSError), self._connection.makefile("rb", _BUFFER_BYTES) as stream:
                while len(length := stream.read(_LENGTH.size)) == _LENGTH.size:
                    (size,) = _LENGTH.unpack(length)
                    if len(message := stream.read(size)) < size:
                        break
                    self.on_message(message)
        finally:
            if not self._closing:
                self._on_disconnect()
