"""The application: routes, errors, the way in, and what the server says of itself."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST

from oscine import __version__
from oscine.config import ServerConfig
from oscine.server.batch import batch_routes
from oscine.server.errors import handle_errors
from oscine.server.live.session import live_routes
from oscine.server.logs import expect_cuts
from oscine.server.middleware import Gate
from oscine.server.schemas import body_error
from oscine.server.service import Service
from oscine.server.speech import speech_routes
from oscine.server.speech_plan import OPENAI_MODELS
from oscine.server.voices import voice_routes
from oscine.types import EngineHealth, ModelCard, SpeechEngine

_PLAYGROUND = Path(__file__).parent / "playground"
_ABOUT = """Speech from text, with the Qwen3-TTS models. A client of OpenAI's speech API works unchanged."""

_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")},
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
    for status, text in (
        (400, "Broken JSON, or something that cannot be spoken."),
        (401, "A key is needed, or this one is wrong."),
        (403, "Not allowed by the server's settings."),
        (404, "No such model or voice."),
        (409, "The name is taken."),
        (413, "Too large."),
        (422, "An unknown field, or a value of the wrong type or range."),
        (429, "Too many at once; see Retry-After."),
        (503, "Not ready; see Retry-After."),
    )
}


def build_app(
    engine: SpeechEngine,
    card: ModelCard,
    config: ServerConfig | None = None,
    health: Callable[[], EngineHealth] | None = None,
) -> FastAPI:
    """`app.state.service` is what drains. The engine is the caller's: it is neither started nor stopped here."""
    expect_cuts()
    service = Service(engine, card, config or ServerConfig(), health)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="Oscine", description=_ABOUT, version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.service = service
    handle_errors(app, body_error)
    app.include_router(speech_routes(service, _ERRORS))
    app.include_router(batch_routes(service, _ERRORS))
    app.include_router(live_routes(service))
    app.include_router(voice_routes(service, _ERRORS))
    _about(app, service)
    app.mount("/playground", StaticFiles(directory=_PLAYGROUND), name="playground")
    _page(app, "/docs", "reference.html")
    if service.config.playground:
        _page(app, "/", "index.html")
    app.add_middleware(Gate, service=service)
    if service.config.cors_origins:
        # Outside of the gate: a page that is allowed shall read its refusals too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    return app


def _page(app: FastAPI, path: str, file: str) -> None:
    app.add_api_route(path, lambda: FileResponse(_PLAYGROUND / file), include_in_schema=False)


def _about(app: FastAPI, service: Service) -> None:
    card, begun_s = service.card, int(time.time())

    @app.get("/v1/models", tags=["about"], summary="What is served", responses={401: _ERRORS[401]})
    async def models() -> dict[str, Any]:
        """The served checkpoint, also under the names that OpenAI's clients send."""
        about = {
            "object": "model",
            "created": begun_s,
            "owned_by": "oscine",
            "kind": card.kind,
            "languages": ["auto", *card.languages],
            "takes_instructions": card.takes_instructions,
            "clones": card.clones,
            "sample_rate": card.sample_rate_hz,
        }
        return {"object": "list", "data": [{"id": name, **about} for name in (card.name, *OPENAI_MODELS)]}

    @app.get("/health", tags=["about"], summary="Alive")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get(
        "/ready", tags=["about"], summary="Ready to speak", responses={503: {"description": "Not yet, or no more."}}
    )
    async def ready() -> Response:
        told, open_ = service.health(), service.engine.status().ready and not service.draining
        state = "draining" if service.draining else told.state
        about = {"ready": open_, "state": state, "restarts": told.restarts, "last_failure": told.last_reason}
        return JSONResponse(about, 200 if open_ else 503, None if open_ else {"retry-after": "2"})

    @app.get("/metrics", tags=["about"], summary="For Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version", tags=["about"], summary="Version and model")
    async def version() -> dict[str, str]:
        return {"version": __version__, "model": card.name, "kind": card.kind}
