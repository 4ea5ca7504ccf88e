"""The OpenAPI document, and how it is served."""

from collections.abc import Iterator
from typing import Any

import pytest

from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.server.dialects.dashscope_http import PATH, DashScopeError
from oscine.server.dialects.elevenlabs_http import ElevenLabsError, is_elevenlabs
from oscine.server.http.errors import ErrorResponse
from oscine.server.schemas import SpeechBody
from tests.server.scripted_engine import CARD, ScriptedEngine


@pytest.fixture
def schema(engine: ScriptedEngine) -> dict[str, Any]:
    return build_app(engine, CARD).openapi()


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def test_every_error_is_the_same_named_component(schema: dict[str, Any]) -> None:
    components = schema["components"]["schemas"]
    assert set(components["ErrorResponse"]["properties"]) == set(ErrorResponse.model_fields)
    assert set(components["ErrorDetail"]["properties"]) == {"message", "type", "param", "code"}
    used = set()
    for name, operation in operations(schema):
        for status, response in operation["responses"].items():
            if status >= "400" and name not in ("get /health", "get /ready"):  # their 503 is no error
                used.add(response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2])
    assert used == {ErrorResponse.__name__, DashScopeError.__name__, ElevenLabsError.__name__}


def test_every_endpoint_has_the_errors_that_every_request_can_get(schema: dict[str, Any]) -> None:
    for name, operation in operations(schema):
        expected = {"403", "405", "431", "500", "503"} | ({"408", "413"} if "requestBody" in operation else set())
        assert expected <= set(operation["responses"]), name


def test_the_dashscope_call_is_described(schema: dict[str, Any]) -> None:
    operation = schema["paths"][PATH]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]
    assert body["required"] == ["input"] and body["properties"]["input"]["required"] == ["text"]
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}


def test_the_file_of_a_url_is_described_and_needs_no_key(engine: ScriptedEngine) -> None:
    operation = build_app(engine, CARD, ServerConfig(api_keys=("k",))).openapi()["paths"]["/files/{name}"]["get"]
    assert operation["security"] == [] and "404" in operation["responses"]
    assert operation["responses"]["200"]["content"].keys() == {"audio/*"}


def test_required_fields_are_first_and_ignored_ones_last(schema: dict[str, Any]) -> None:
    body = schema["components"]["schemas"]["SpeechBody"]
    names = list(body["properties"])
    assert names[:4] == ["input", "model", "voice", "response_format"] and body["required"] == ["input"]
    ignored = [name for name, field in SpeechBody.model_fields.items() if field.deprecated]
    assert names[-len(ignored) :] == ignored and "ambient_sound" in ignored


def test_the_openapi_document_has_only_statuses_that_the_server_sends(engine: ScriptedEngine) -> None:
    schema = build_app(engine, CARD).openapi()
    for path, operations in schema["paths"].items():
        assert is_elevenlabs(path) or not any("422" in operation["responses"] for operation in operations.values())
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_the_openapi_document_describes_the_key_and_a_request(engine: ScriptedEngine) -> None:
    for keys in ((), ("secret",)):
        schema = build_app(engine, CARD, ServerConfig(api_keys=keys)).openapi()
        assert schema["components"]["securitySchemes"]["api_key"]["scheme"] == "bearer"
        assert schema.get("security", []) == ([{"api_key": []}] if keys else [])
        assert schema["components"]["schemas"]["SpeechBody"]["examples"][0]["input"] == "Hello there."
