"""JSON objects that hold audio."""

from __future__ import annotations

import base64

from oscine.server.streaming_response import ResponseWriter

_SLICE_BYTES = 3 * 2**18  # a multiple of 3, as base64 needs


async def write_with_audio(writer: ResponseWriter, fields: str, name: str, audio: bytes) -> None:
    """Writes a JSON object with one more field."""
    await writer.write(f'{fields[:-1]},"{name}":"'.encode())
    await write_base64(writer, audio)
    await writer.write(b'"}')


async def write_base64(writer: ResponseWriter, audio: bytes) -> None:
    """Writes in pieces: hours of audio at once would hold the event loop."""
    for begin in range(0, len(audio), _SLICE_BYTES):
        await writer.write(base64.b64encode(audio[begin : begin + _SLICE_BYTES]))
