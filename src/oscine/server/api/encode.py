"""POST /v1/audio/encode: PCM in, an audio file out. The playground saves speech in any format with it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from oscine.audio.encoders import FORMATS, AsyncEncoder, open_file_encoder
from oscine.errors import RequestError
from oscine.server.api.spellings import QueriedFormat, QueriedRate
from oscine.server.service import Service

_SLICE_BYTES = 2**16  # a second of audio, which takes an encoder some milliseconds
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BodyRate = Annotated[QueriedRate, Query(description="Of the body.")]


def encode_routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["speech"])
    files = {form.media_type: _BINARY for form in FORMATS.values()}

    @router.post(
        "/v1/audio/encode",
        response_class=Response,
        responses={200: {"description": "The whole file.", "content": files}, **errors},
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": _BINARY}}},
        summary="Encode PCM",
    )
    async def encode(request: Request, response_format: QueriedFormat, sample_rate: _BodyRate = 24_000) -> Response:
        """The body is 16-bit little-endian mono PCM."""
        pieces: list[bytes] = []
        encoder = AsyncEncoder(open_file_encoder(response_format, rate_hz=sample_rate), service.encode_pool)
        with contextlib.closing(encoder):
            async for pcm in _samples(request):
                pieces.append(await encoder.push(pcm))
            pieces.append(await encoder.finish())
        data = b"".join(pieces)
        return Response(data, media_type=FORMATS[response_format].media_type)

    return router


async def _samples(request: Request) -> AsyncIterator[bytes]:
    """The body as it arrives, in pieces of whole samples. Raises RequestError if there is half a sample or none."""
    received, rest = 0, b""
    async for piece in request.stream():
        received += len(piece)
        piece = rest + piece
        whole = len(piece) // 2 * 2
        rest = piece[whole:]
        for begin in range(0, whole, _SLICE_BYTES):
            yield piece[begin : min(begin + _SLICE_BYTES, whole)]
    if not received or rest:
        raise RequestError(f"the body must be 16-bit PCM of at least one sample, got {received} bytes")
