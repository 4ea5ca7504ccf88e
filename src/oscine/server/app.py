"""Builds the FastAPI application: routes, error handling, middleware."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from oscine import __version__
from oscine.config import ServerConfig
from oscine.errors import NotFoundError
from oscine.server.api.batch import batch_routes
from oscine.server.api.consents import consent_routes
from oscine.server.api.models import model_routes
from oscine.server.api.speech import SPEECH_PATH, direct_speech, encode_routes, speech_routes
from oscine.server.api.usage import usage_routes
from oscine.server.api.voices import voice_routes
from oscine.server.asyncapi import asyncapi
from oscine.server.dialects.routes import realtime_routes, refusal_at
from oscine.server.http.documents import add_described, add_files
from oscine.server.http.errors import error_response, handle_errors
from oscine.server.http.logs import drop_expected_errors, request_id
from oscine.server.http.metrics import watch_loop_lag
from oscine.server.http.openapi import ERRORS, add_openapi
from oscine.server.middleware import RequestMiddleware
from oscine.server.model_admin import OpenModel
from oscine.server.service import Service
from oscine.server.speech_record import outcome_routes
from oscine.speech.models import LoadedModel
from oscine.types import EngineHealth, ModelCard, SpeechEngine

_DESCRIPTION = "Text to speech with the Qwen3-TTS models. Clients of OpenAI's speech API need another URL."


def build_app(
    engine: SpeechEngine,
    card: ModelCard,
    config: ServerConfig | None = None,
    health: Callable[[], EngineHealth] | None = None,
) -> FastAPI:
    """An application for one model. The caller starts and stops the engine."""
    return build_models_app([LoadedModel.of(engine, card, health)], config)


def build_models_app(
    models: Sequence[LoadedModel], config: ServerConfig | None = None, open_model: OpenModel | None = None
) -> FastAPI:
    """`app.state.service` supports draining. The caller stops the engines; with `open_model`, those of added models
    too."""
    drop_expected_errors()
    service = Service(models, config or ServerConfig(), open_model)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watchers = (service.connections.watch(), watch_loop_lag(service.metrics.loop_lag_s.observe))
        service.api_keys.start()
        if service.aligner:
            service.aligner.start()
        watching = [asyncio.create_task(watcher) for watcher in watchers]
        yield
        for task in watching:
            task.cancel()
        service.close()

    about = {"title": "Oscine", "description": _DESCRIPTION, "version": __version__}
    app = FastAPI(**about, lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)  # type: ignore[arg-type]
    app.state.service = service
    handle_errors(app, service.metrics.refused, refusal_at)
    for router in (
        speech_routes(service, ERRORS),
        batch_routes(service, ERRORS),
        outcome_routes(service.outcomes, ERRORS),
        encode_routes(service),
        usage_routes(service),
        realtime_routes(service, ERRORS),
        voice_routes(service),
        consent_routes(service),
        model_routes(service),
    ):
        app.router.routes.extend(router.routes)  # include_router() would build each route a second time
    _add_status_routes(app, service)
    has_keys = service.config.needs_key
    add_openapi(app, service.ledger.pool("file"), has_keys=has_keys)
    add_described(app, "/asyncapi.json", lambda: asyncapi(has_keys=has_keys), service.ledger.pool("file"))
    app.add_api_websocket_route("/{path:path}", _unknown_websocket)  # after all other WebSockets
    pages = {"/docs": "reference.html", **({"/": "index.html"} if service.config.playground else {})}
    add_files(app, "/playground", Path(__file__).parent / "playground", pages)
    app.add_middleware(RequestMiddleware, service=service, direct={("POST", SPEECH_PATH): direct_speech(service)})
    if service.config.cors_origins:
        # Outermost: pages of allowed origins can read error responses too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
        )
    return app


def build_status_app(service: Service) -> FastAPI:
    """An application of /metrics, /health, /ready and /version alone, with the same keys and errors."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    handle_errors(app, service.metrics.refused)
    _add_status_routes(app, service)
    app.add_middleware(RequestMiddleware, service=service)
    return app


async def _unknown_websocket(socket: WebSocket) -> None:
    """Answers 404, where the framework would answer 403."""
    error = NotFoundError(f"WS {socket.url.path} does not exist; docs/api.md describes the WebSockets of this server")
    response = error_response(error)
    response.headers["x-request-id"] = request_id.get()
    await socket.send_denial_response(response)


def _add_status_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["about"], summary="Liveness", responses={503: {"description": "The engine has failed."}})
    async def health() -> Response:
        """200 while the engine works, starts or restarts. Also reports state, restarts and the last failure."""
        about = service.readiness()
        failed = about["state"] == "failed"
        status = {"status": "failed" if failed else "alive"}
        shown = {name: about[name] for name in ("state", "restarts", "last_failure")}
        return JSONResponse({**status, **shown}, 503 if failed else 200)

    @app.get("/ready", tags=["about"], summary="Readiness", responses={503: {"description": "Not ready."}})
    async def ready() -> Response:
        about = service.readiness()
        is_ready = about["ready"]
        return JSONResponse(about, 200 if is_ready else 503, None if is_ready else {"retry-after": "2"})

    @app.get("/metrics", tags=["about"], summary="Prometheus metrics", response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/version", tags=["about"], summary="Version and model")
    async def version() -> dict[str, Any]:
        """Versions and models. `model` and `kind` are those of the first model, and `models` lists all if there are
        several."""
        cards = service.models.cards
        about = {"version": __version__, "model": cards[0].name, "kind": cards[0].kind}
        return {**about, "models": {card.name: card.kind for card in cards}} if len(cards) > 1 else about
