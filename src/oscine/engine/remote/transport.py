"""One end of the socket between a front end and its worker: length-prefixed messages, one thread per direction.

Posting never blocks: unsent messages wait in memory and are counted in bytes. When the peer's process ends, everything
it has sent is received first, then the disconnect is reported.
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


class Transport:
    """`on_message` and `on_disconnect` (the peer is gone) are called on the reading thread."""

    def __init__(
        self, connection: socket.socket, on_message: Callable[[bytes], None], on_disconnect: Callable[[], None]
    ) -> None:
        self._connection, self._on_message, self._on_disconnect = connection, on_message, on_disconnect
        self._changed = threading.Condition()
        self._outbox: deque[bytes] = deque()
        self._closing = False
        self.unsent_bytes = 0
        self._reader = threading.Thread(target=self._read, name="oscine-reader", daemon=True)
        self._writer = threading.Thread(target=self._write, name="oscine-writer", daemon=True)
        self._reader.start()
        self._writer.start()

    def post(self, message: bytes) -> None:
        """From any thread."""
        with self._changed:
            self._outbox.append(message)
            self.unsent_bytes += len(message)
            self._changed.notify()

    def wait_disconnected(self, timeout_s: float) -> None:
        """Waits until everything that the peer sent has been received."""
        self._reader.join(timeout_s)

    def close(self, linger_s: float = 0.0) -> None:
        """Sends what is waiting for up to `linger_s`, then disconnects. Never on the reading thread."""
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
                self._connection.sendall(b"".join(_LENGTH.pack(len(message)) + message for message in batch))
                with self._changed:
                    self.unsent_bytes -= sum(map(len, batch))

    def _next(self) -> list[bytes]:
        """The next messages to send; none when the transport is closing and all are sent."""
        with self._changed:
            while not self._outbox and not self._closing:
                self._changed.wait()
            return [self._outbox.popleft() for _ in range(min(_BATCH, len(self._outbox)))]

    def _read(self) -> None:
        try:
            with contextlib.suppress(OSError), self._connection.makefile("rb", _BUFFER_BYTES) as stream:
                while len(length := stream.read(_LENGTH.size)) == _LENGTH.size:
                    (size,) = _LENGTH.unpack(length)
                    if len(message := stream.read(size)) < size:
                        break
                    self._on_message(message)
        finally:
            if not self._closing:
                self._on_disconnect()
