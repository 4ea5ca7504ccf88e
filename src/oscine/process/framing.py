"""Messages between processes: a line of JSON that states how many bytes follow, and the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

Message = dict[str, Any]


def write_message(pipe: IO[bytes], message: Mapping[str, Any], content: bytes = b"") -> None:
    pipe.write(json.dumps({**message, "bytes": len(content)}).encode() + b"\n" + content)
    pipe.flush()


def read_message(pipe: IO[bytes]) -> tuple[Message, bytes]:
    """Raises EOFError if the other side has closed the pipe, even in the middle of a message."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError("the other process closed the pipe")
    message: Message = json.loads(line)
    size = message.pop("bytes")
    if len(content := pipe.read(size)) < size:
        raise EOFError("the other process closed the pipe")
    return message, content
