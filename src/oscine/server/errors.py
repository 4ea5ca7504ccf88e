"""One answer for everything that can go wrong: any exception becomes an ApiError, with a status and a JSON body."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Match

from oscine.types import ConfigError, EngineError, OscineError, OverloadedError, RequestError, TooLongError

_log = logging.getLogger(__name__)

_CODES = {
    400: "bad_request",
    401: "invalid_api_key",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid_field",
    429: "overloaded",
    500: "internal_error",
    503: "not_ready",
}
# OpenAI's clients look at these.
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(HTTPException):
    """What a client is told: the status, and a message that says what was asked, what is possible, what to do.

    An HTTPException, as FastAPI lets no other one through while it reads a body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(status, message)
        self.status, self.message, self.param = status, message, param
        self.code = code or _CODES[status]
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def _headers(error: ApiError) -> dict[str, str]:
    headers = dict(error.headers or {})
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    elif error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def api_error(error: BaseException) -> ApiError:
    """The one table from errors to statuses."""
    match error:
        case ApiError():
            return error
        case TooLongError():
            return ApiError(413, str(error), param=_field(error.param))
        case RequestError():
            return ApiError(400, str(error), param=_field(error.param))
        case OverloadedError():
            return ApiError(429, str(error), retry_after_s=error.retry_after_s)
        case EngineError():
            return ApiError(503, str(error), code="engine_failed", retry_after_s=1.0)
        case ConfigError() | OscineError():
            return ApiError(500, str(error))
        case _:
            _log.error("a request met a bug", exc_info=error)
            return ApiError(500, "this is a bug of the server, not of your request; it has been logged")


# The engine speaks of its own fields; clients know them by their wire names.
_WIRE_NAMES = {"text": "input", "instruct": "instructions", "text_mode": "non_streaming_mode", "greedy": "temperature"}


def _field(param: str | None) -> str | None:
    return _WIRE_NAMES.get(param, param) if param else None


def error_response(error: BaseException) -> Response:
    told = api_error(error)
    return JSONResponse({"error": told.body}, told.status, _headers(told))


def _methods(request: Request) -> list[str]:
    """All that this path takes: the router's own list stops at the first route."""
    routes = request.app.routes
    asked = [(method, {**request.scope, "method": method}) for method in ("GET", "POST", "PUT", "PATCH", "DELETE")]
    return [method for method, scope in asked if any(route.matches(scope)[0] == Match.FULL for route in routes)]


def handle_errors(app: FastAPI, validation_error: Callable[[RequestValidationError], ApiError]) -> None:
    def refuse(request: Request, error: Exception) -> Response:
        # What comes here was refused before anybody began to speak: no meter has counted it.
        told = api_error(error)
        if service := getattr(app.state, "service", None):
            service.metrics.refused(request.url.path, told.status)
        return error_response(told)

    async def answer(request: Request, error: Exception) -> Response:
        return refuse(request, error)

    async def answer_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = f"{request.method} {request.url.path}"
        known = {
            404: f"there is no {path}; see /docs for what there is",
            405: f"{path} is not possible; see /docs for the methods of this path",
        }
        status = error.status_code if error.status_code in _CODES else 400
        told = ApiError(status, known.get(error.status_code, str(error.detail)))
        told.headers = {"allow": ", ".join(_methods(request))} if status == 405 else error.headers
        return refuse(request, told)

    async def answer_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refuse(request, validation_error(error))

    app.add_exception_handler(OscineError, answer)
    app.add_exception_handler(ApiError, answer)
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(RequestValidationError, answer_validation)
