"""A `decode` for the decoder process that does what the file says: crash, never end, take memory, break out."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from oscine.audio.decoding.decoders import Block
from oscine.audio.decoding.wire import ClipLimits

RATE_HZ = 8000


def decode(encoded: bytes, name: str, limits: ClipLimits) -> Iterator[Block]:
    match encoded:
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"crash after a block":
            yield Block(RATE_HZ, np.ones(100_000, np.float32))
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"exit":
            os._exit(0)
        case b"loop":
            while True:
                pass
        case b"memory":
            yield Block(RATE_HZ, np.ones(2**30, np.float32))
        case b"flood":
            while True:
                yield Block(RATE_HZ, np.ones(2**18, np.float32))
        case b"bug":
            raise KeyError("a bug")
        case b"pid":
            yield Block(os.getpid(), np.ones(1, np.float32))
        case b"environment":
            yield Block(RATE_HZ, np.frombuffer("\n".join(os.environ).encode(), np.uint8).astype(np.float32))
        case _:
            escapes = {
                b"open a file": lambda: os.open("/etc/passwd", os.O_RDONLY),
                b"write a file": lambda: os.open("escaped", os.O_WRONLY | os.O_CREAT),
                b"open a socket": socket.socket,
                b"start a program": lambda: subprocess.run([sys.executable, "-c", ""]),
            }
            if encoded in escapes:
                escapes[encoded]()
            yield Block(RATE_HZ, np.frombuffer(encoded, np.uint8).astype(np.float32))
