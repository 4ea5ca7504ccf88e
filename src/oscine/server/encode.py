"""POST /v1/audio/encode: PCM in, an audio file out. The playground saves speech in any format with it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from oscine.encoding.encoders import FORMATS, encode_whole
from oscine.server.errors import ApiError
from oscine.server.schemas import FormatName
from oscine.server.service import Service

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_SampleRate = Annotated[Literal["8000", "16000", "22050", "24000", "44100", "48000"], Query(description="Of the body.")]


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
    async def encode(request: Request, response_format: FormatName, sample_rate: _SampleRate = "24000") -> Response:
        """The body is 16-bit little-endian mono PCM."""
        pcm = await request.body()
        if not pcm or len(pcm) % 2:
            raise ApiError(400, f"the body must be 16-bit PCM of at least one sample, got {len(pcm)} bytes")
        work = partial(encode_whole, response_format, pcm, rate_hz=int(sample_rate))
        data = await asyncio.get_running_loop().run_in_executor(service.encode_pool, work)
        return Response(data, media_type=FORMATS[response_format].media_type)

    return router
