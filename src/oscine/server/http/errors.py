"""Maps every error to an HTTP status and OpenAI's JSON body: the only table of statuses."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from oscine.errors import (
    ConflictError,
    EngineError,
    FieldError,
    NotAllowedError,
    NotFoundError,
    NotReadyError,
    OscineError,
    OverloadedError,
    RequestError,
    TimedOutError,
    TooLargeError,
    UnauthorizedError,
)

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
    431: "too_large",
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


class HeadTooLargeError(TooLargeError):
    """The request line and the headers exceed a limit."""


class ApiError(Exception):
    """An error as it is answered: its status, message, code and headers."""

    headers: Mapping[str, str] | None = None

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param
        self.code = code or _CODES[status]
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


# The only place that turns errors into HTTP statuses. The first class of an error's ancestry that stands here counts.
_STATUSES: dict[type[BaseException], tuple[int, str | None]] = {
    FieldError: (400, "invalid_field"),  # 400, as OpenAI, vLLM-Omni and SGLang-Omni answer
    UnauthorizedError: (401, None),
    NotFoundError: (404, None),
    NotAllowedError: (403, None),
    ConflictError: (409, None),
    TimedOutError: (408, None),
    HeadTooLargeError: (431, None),
    TooLargeError: (413, None),
    RequestError: (400, None),
    NotReadyError: (503, None),
    OverloadedError: (429, None),
    EngineError: (503, "engine_failed"),
    OscineError: (500, None),
}


def api_error(error: BaseException) -> ApiError:
    if isinstance(error, ApiError):
        return error
    known = next((_STATUSES[cls] for cls in type(error).__mro__ if cls in _STATUSES), None)
    if known is None:
        _log.error("unexpected exception", exc_info=error)
        return ApiError(500, "internal server error; the request is not at fault, and the log has the details")
    status, code = known
    param: str | None = getattr(error, "param", None)
    if param and not isinstance(error, FieldError):  # which has the client's name already
        param = _WIRE_NAMES.get(param, param)
    return ApiError(
        status,
        str(error),
        param=param,
        code=getattr(error, "code", None) or code,
        retry_after_s=getattr(error, "retry_after_s", None),
    )


def error_headers(error: ApiError) -> dict[str, str]:
    headers = dict(error.headers or {})
    if error.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after_s))
    elif error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def error_response(exception: BaseException) -> Response:
    error = api_error(exception)
    return JSONResponse({"error": error.body}, error.status, error_headers(error))


def _methods(request: Request) -> list[str]:
    """All methods of this path: the router's own list stops at the first route."""
    scopes = {method: {**request.scope, "method": method} for method in ("GET", "POST", "PUT", "PATCH", "DELETE")}
    routes = request.app.routes
    return [
        method for method, scope in scopes.items() if any(route.matches(scope)[0] == Match.FULL for route in routes)
    ]


def _http_error(request: Request, error: HTTPException) -> ApiError:
    """Translates errors of the framework itself."""
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
    validation_error: Callable[[list[Any]], FieldError],
    count_refusal: Callable[[str, int], None],
    render: Callable[[str, ApiError], Response] = lambda _, error: error_response(error),
) -> None:
    """Answers errors that occur before a handler counts the request; `count_refusal` takes their path and status.
    `render` makes the response at a path."""

    async def answer(request: Request, exception: Exception) -> Response:
        if isinstance(exception, RequestValidationError):
            exception = validation_error(list(exception.errors()))
        elif isinstance(exception, HTTPException) and isinstance(exception.__cause__, OscineError):
            # FastAPI wraps what is raised while it reads a body.
            exception = exception.__cause__
        elif isinstance(exception, HTTPException):
            exception = _http_error(request, exception)
        error = api_error(exception)
        count_refusal(request.url.path, error.status)
        return render(request.url.path, error)

    for kind in (OscineError, ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)
