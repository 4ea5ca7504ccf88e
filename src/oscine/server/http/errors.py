"""Maps every error to an HTTP status and OpenAI's JSON body: the only table of statuses."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
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
    nearest,
    shown_name,
)
from oscine.request import SpeechRequest, Turn

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


_DECLARED = {**Turn.fields(), **SpeechRequest.fields()}
# What other speech APIs call our fields.
OTHER_NAMES = {"text": "input", "prompt": "input", "format": "response_format"}
MAX_UNKNOWN_FIELDS = 64  # that are ignored; more are refused
MAX_COMPARED_CHARS = 40  # longer names are not compared with the known ones
_MAX_SHOWN_CHARS = 80  # of a value in an error message
_WRONG_ALTERNATIVE = ("string_type", "list_type", "model_type", "model_attributes_type")


def invalid_field(errors: list[Any], *, of_request: bool = True) -> FieldError:
    """The first of pydantic's errors in our words. `of_request`: the fields are those of a speech request."""
    error = _most_specific(errors)
    name = _joined(_path(error["loc"]))
    if error["type"] == "bad_name":
        param = f"{name}.{error['ctx']['name']}" if name else error["ctx"]["name"]
        return FieldError(f"{name}: {error['msg']}" if name else error["msg"], param=param)
    if error["type"] == "missing":
        return FieldError(f"{name or 'the body'} is missing; it is required{_misspelled(error)}", param=name or None)
    if not name:
        return FieldError("the body must be one JSON object, sent with content-type: application/json")
    path = _path(error["loc"])
    field = _DECLARED.get(path[-1]) if len(path) == 1 or path[0] in ("input", "extra_params") else None
    if of_request and field and field.name != "voice" and error["type"] != "string_unicode":
        return FieldError(field.refusal(error.get("input"), name), param=name)
    given = error.get("input")
    if path[0] == "input" and error["type"] in _WRONG_ALTERNATIVE and len(path) == 2:
        message = f"a turn must be an object with a text, got {type(given).__name__}"
        return FieldError(f"{name}: {message}", param=name)
    shown = f", got {repr(given)[:_MAX_SHOWN_CHARS]}" if isinstance(given, int | float | bool | None) else ""
    return FieldError(f"{name}: {error['msg'][0].lower()}{error['msg'][1:]}{shown}", param=name)


def _misspelled(error: Any) -> str:
    """Names the field that was probably meant to be the missing one."""
    missing, given = str(error["loc"][-1]), error.get("input")
    names = [shown_name(name) for name in list(given)[:MAX_UNKNOWN_FIELDS]] if isinstance(given, dict) else []
    others = [name for name in names if OTHER_NAMES.get(name) == missing]
    found = others or nearest(missing, [name for name in names if len(name) <= MAX_COMPARED_CHARS])
    return f"; did you mean it by {found[0]!r}?" if found else ""


def _most_specific(errors: list[Any]) -> Any:
    """A field with several allowed types has an error per type; the type that the client meant matched furthest."""
    same_field = [error for error in errors if _path(error["loc"])[:1] == _path(errors[0]["loc"])[:1]]
    return max(same_field, key=lambda error: (len(_path(error["loc"])), error["type"] not in _WRONG_ALTERNATIVE))


def _joined(path: Sequence[str]) -> str:
    """`input[1].voice`"""
    return "".join(f"[{name}]" if name.isdecimal() else f".{name}" for name in path).removeprefix(".")


def _path(loc: tuple[str | int, ...]) -> list[str]:
    """Drops the components that FastAPI and pydantic add: the body, and the type that was tried."""
    names = [str(name) for name in (loc[1:] if loc[:1] == ("body",) else loc)]
    tried = ("str", "constrained-str", "VoiceObject")
    return [name for name in names if name not in tried and not name.startswith(("list[", "function-"))]


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
    count_refusal: Callable[[str, int], None],
    render: Callable[[str, ApiError], Response] = lambda _, error: error_response(error),
) -> None:
    """Answers errors that occur before a handler counts the request; `count_refusal` takes their path and status.
    `render` makes the response at a path."""

    async def answer(request: Request, exception: Exception) -> Response:
        if isinstance(exception, RequestValidationError):
            exception = invalid_field(list(exception.errors()))
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
