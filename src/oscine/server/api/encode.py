"""POST /v1/audio/encode: turns PCM into an audio file. The playground saves speech in any format with it."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from oscine.audio.encoders import FORMATS, AsyncEncoder, open_file_encoder
from oscine.errors import RequestError
from oscine.server.http.openapi import ERRORS
from oscine.server.http.streaming_response import ResponseWriter, StreamingSpeechResponse, write_whole
from oscine.server.service import Service
from oscine.server.spellings import QueriedFormat, QueriedRate

_SLICE_BYTES = 2**16  # 1.4 s of audio at 24 kHz, which take an encoder some milliseconds
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BodyRate = Annotated[QueriedRate, Query(description="Of the body.")]


def encode_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["speech"])
    conversions = service.ledger.pool("conversion")
    files = {form.media_type: _BINARY for form in FORMATS.values()}

    @router.post(
        "/v1/audio/encode",
        response_class=Response,
        responses={200: {"description": "The whole file.", "content": files}, **ERRORS},
        openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": _BINARY}}},
        summary="Encode PCM",
    )
    async def encode(request: Request, response_format: QueriedFormat, sample_rate: _BodyRate = 24_000) -> Response:
        """The body is 16-bit little-endian mono PCM."""
        encoder = open_file_encoder(response_format, rate_hz=sample_rate)
        pcm = await request.body()
        if not pcm or len(pcm) % 2:
            raise RequestError(f"the body must be 16-bit PCM of at least one sample, got {len(pcm)} bytes")

        async def produce(writer: ResponseWriter) -> None:
            with service.api_keys.stream(request.state.api_key), conversions.admit():
                data = await _encoded(pcm, AsyncEncoder(encoder, conversions.executor))
            headers = {"content-type": FORMATS[response_format].media_type}
            await write_whole(writer, data, headers, service.ledger["response"])

        return StreamingSpeechResponse(produce, service.config.stalled_s)

    return router


async def _encoded(pcm: bytes, encoder: AsyncEncoder) -> bytes:
    """Encodes in jobs of milliseconds, so that conversions share their thread and end when their clients leave."""
    with contextlib.closing(encoder):
        pieces = [await encoder.push(pcm[begin : begin + _SLICE_BYTES]) for begin in range(0, len(pcm), _SLICE_BYTES)]
        return b"".join((*pieces, await encoder.finish()))
