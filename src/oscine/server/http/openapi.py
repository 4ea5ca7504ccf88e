"""The OpenAPI document: what FastAPI generates, with the errors that every endpoint can have."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from oscine.process.resources import WorkPool
from oscine.server.http.documents import add_described
from oscine.server.http.errors import ErrorResponse

_REF = "#/components/schemas/{model}"
_ERROR_CONTENT = {"application/json": {"schema": {"$ref": _REF.format(model=ErrorResponse.__name__)}}}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": _ERROR_CONTENT}
    for status, text in (
        (400, "Invalid JSON, a wrong field, or a request that cannot be spoken."),
        (401, "The API key is missing or wrong."),
        (403, "Not allowed by the server's settings."),
        (404, "No such model or voice."),
        (405, "The path has other methods; see Allow."),
        (408, "The body did not arrive in time."),
        (409, "The name is taken, or it conflicts with what the server has."),
        (413, "Too large."),
        (429, "Too many requests; see Retry-After."),
        (431, "The request line and the headers are too large."),
        (500, "A bug in the server."),
        (503, "Not ready; see Retry-After."),
    )
}
_OF_ALL = (403, 405, 431, 500, 503)  # what every endpoint can answer
_OF_BODIES = (408, 413)
_USUAL = ("model", "voice", "response_format")  # fields that most requests have


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Returns `responses=` of an endpoint, for the statuses that only some endpoints answer."""
    return {status: ERRORS[status] for status in statuses}


def add_openapi(app: FastAPI, pool: WorkPool, *, has_keys: bool) -> None:
    """Completes `app.openapi`, and serves it."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(describe(), has_keys)
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]
    add_described(app, "/openapi.json", openapi, pool)


def _complete(schema: dict[str, Any], has_keys: bool) -> None:
    components = schema.setdefault("components", {})
    about_key = {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key of the server, if it has any; also as api-key, x-api-key or xi-api-key.",
    }
    components["securitySchemes"] = {"api_key": about_key}
    if has_keys:
        schema["security"] = [{"api_key": []}]
    schemas = components.setdefault("schemas", {})
    # FastAPI describes a status that this server never sends: it answers 400.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= models_json_schema([(ErrorResponse, "serialization")], ref_template=_REF)[1]["$defs"]
    for operations in schema["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            if "HTTPValidationError" in str(responses.get("422")):
                del responses["422"]
            for status in (*_OF_ALL, *(_OF_BODIES if "requestBody" in operation else ())):
                responses.setdefault(str(status), ERRORS[status])
    for model in schemas.values():
        if "properties" in model:
            model["properties"] = _ordered(model["properties"], model.get("required", ()))


def _ordered(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """Puts required fields first, then those that most requests have, and those that are accepted and ignored last."""

    def rank(name: str) -> int:
        if name in required:
            return -1
        if name in _USUAL:
            return _USUAL.index(name)
        return len(_USUAL) + bool(properties[name].get("deprecated"))

    return {name: properties[name] for name in sorted(properties, key=rank)}
