"""Maps every exception to an ApiError: a status and a JSON body."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from oscine.errors import EngineError, NotReadyError, OscineError, OverloadedError, RequestError, TooLongError

_log = logging.getLogger(__name__)

_CODES = {
    400: "bad_request",
    401: "invalid_api_key",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    429: "overloaded",
    500: "internal_error",
    503: "not_ready",
}
# OpenAI's clients read these.
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
# Engine fields -> the names that clients know.
_WIRE_NAMES = {"text": "input", "text_mode": "non_streaming_mode", "greedy": "temperature"}


class ErrorDetail(BaseModel):
    message: str = Field(description="What was wrong, what is allowed, and what to do.")
    type: str = Field(description="OpenAI's class of the error.")
    param: str | None = Field(description="The field that it is about.")
    code: str


class ErrorResponse(BaseModel):
    """The body of every error, as OpenAI's API has it."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An error response. The message says what was wrong, what is allowed and what to do.

    An HTTPException, because FastAPI lets no other exception pass while it reads a body.
    """

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


def field_error(message: str, param: str | None = None) -> ApiError:
    """A field is unknown, has the wrong type or is out of range. 400, as OpenAI, vLLM-Omni and SGLang-Omni answer."""
    return ApiError(400, message, param=param, code="invalid_field")


def api_error(error: BaseException) -> ApiError:
    """The one table from exceptions to statuses."""
    match error:
        case ApiError():
            return error
        case RequestError():
            param = error.param and _WIRE_NAMES.get(error.param, error.param)
            return ApiError(413 if isinstance(error, TooLongError) else 400, str(error), param=param or None)
        case NotReadyError():
            return ApiError(503, str(error), retry_after_s=error.retry_after_s)
        case OverloadedError():
            return ApiError(429, str(error), retry_after_s=error.retry_after_s)
        case EngineError():
            return ApiError(503, str(error), code="engine_failed", retry_after_s=1.0)
        case OscineError():
            return ApiError(500, str(error))
        case _:
            _log.error("unexpected exception", exc_info=error)
            return ApiError(500, "internal server error; the request is not at fault, and the log has the details")


def error_response(exception: BaseException) -> Response:
    error = api_error(exception)
    headers = dict(error.headers or {})
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    elif error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse({"error": error.body}, error.status, headers)


def _methods(request: Request) -> list[str]:
    """All methods of this path: the router's own list stops at the first route."""
    scopes = {method: {**request.scope, "method": method} for method in ("GET", "POST", "PUT", "PATCH", "DELETE")}
    routes = request.app.routes
    return [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] == Match.FULL for route in routes)
    ]


def _http_error(request: Request, error: HTTPException) -> ApiError:
    """For errors of the framework itself."""
    path = f"{request.method} {request.url.path}"
    messages = {
        404: f"{path} does not exist; see /docs for the endpoints",
        405: f"{path} is not supported; see /docs for the methods of this path",
    }
    status = error.status_code if error.status_code in _CODES else 400
    found = ApiError(status, messages.get(status, str(error.detail)))
    found.headers = {"allow": ", ".join(_methods(request))} if status == 405 else error.headers
    return found


def handle_errors(
    app: FastAPI,
    validation_error: Callable[[list[Any]], ApiError],
    count_refusal: Callable[[str, int], None],
) -> None:
    """Answers errors that occur before a handler counts the request; `count_refusal` takes their path and status."""

    async def answer(request: Request, exception: Exception) -> Response:
        if isinstance(exception, RequestValidationError):
            exception = validation_error(list(exception.errors()))
        elif isinstance(exception, HTTPException) and not isinstance(exception, ApiError):
            exception = _http_error(request, exception)
        error = api_error(exception)
        count_refusal(request.url.path, error.status)
        return error_response(error)

    for kind in (OscineError, ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)
