"""The messages of a decoding job on its socket.

job: length of the header, header (JSON), the file

answer: acceptance, any number of blocks, then a refusal or the end; a decoder that dies sends neither
"""

from __future__ import annotations

import json
import math
import socket
import struct
from dataclasses import asdict, dataclass
from typing import Literal

from oscine.errors import VoiceError

Kind = Literal[b"A", b"B", b"R", b"E"]
ACCEPTED: Kind = b"A"
BLOCK: Kind = b"B"  # value: the rate in Hz; content: float32 samples
REFUSAL: Kind = b"R"  # content: the message
END: Kind = b"E"

_JOB = struct.Struct("<I")
_ANSWER = struct.Struct("<cII")  # kind, value, bytes of content


@dataclass(frozen=True, slots=True)
class DecodingJob:
    name: str
    file_bytes: int
    limits: ClipLimits
    memory_bytes: int
    cpu_s: int


def send_job(connection: socket.socket, job: DecodingJob, encoded: bytes) -> None:
    header = json.dumps(asdict(job)).encode()
    connection.sendall(_JOB.pack(len(header)) + header)
    connection.sendall(encoded)


def receive_job(connection: socket.socket) -> DecodingJob:
    (size,) = _JOB.unpack(receive(connection, _JOB.size))
    fields = json.loads(receive(connection, size))
    return DecodingJob(**{**fields, "limits": ClipLimits(**fields["limits"])})


def send_answer(connection: socket.socket, kind: Kind, value: int = 0, content: bytes = b"") -> None:
    connection.sendall(_ANSWER.pack(kind, value, len(content)) + content)


def receive_answer(connection: socket.socket, max_bytes: int) -> tuple[bytes, int, bytes]:
    """Raises EOFError, or ValueError if the content exceeds `max_bytes`."""
    kind, value, size = _ANSWER.unpack(receive(connection, _ANSWER.size))
    if size > max_bytes:
        raise ValueError(f"{size} bytes follow, at most {max_bytes} are expected")
    return kind, value, receive(connection, size)


def receive(connection: socket.socket, size: int) -> bytes:
    content = bytearray(size)
    view = memoryview(content)
    while len(view):
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the other side closed the connection")
        view = view[count:]
    return bytes(content)


# --- Limits on audio files. They apply while a file is decoded: a few kilobytes can hold hours of audio.


MAX_FILE_BYTES = 256 * 2**20
MAX_CHANNELS = 7  # libav frames have eight pointers to planes, and PyAV reads one beyond the last plane


@dataclass(frozen=True, slots=True)
class ClipLimits:
    max_s: float = math.inf
    max_samples: int = 2**26  # per channel; 20 minutes at 48 kHz are 58 million


def clip_error(message: str) -> VoiceError:
    """An error about a reference clip."""
    return VoiceError(message, "ref_audio")


ANY_CLIP = ClipLimits()
# A voice needs 3 to 20 s, and each second adds 12.5 prompt rows to every request with this voice.
REFERENCE_CLIP = ClipLimits(max_s=60.0, max_samples=60 * 192_000)
