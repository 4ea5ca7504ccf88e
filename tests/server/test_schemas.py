"""The OpenAPI document describes all endpoints, and requests generated from it never cause a 5xx."""

from collections.abc import Iterator

import httpx
import hypothesis
import pytest
import schemathesis

from oscine.config import ServerConfig
from tests.server.scripted_engine import BASE_CARD, ScriptedEngine
from tests.server.serving import client_of, eventually

pytestmark = pytest.mark.slow

_ENGINE = ScriptedEngine()
_OPERATIONS = {
    ("POST", "/v1/audio/speech"),
    ("POST", "/v1/audio/speech/batch"),
    ("GET", "/v1/audio/speech/{request_id}"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/usage/keys"),
    ("POST", "/api/v1/services/aigc/multimodal-generation/generation"),
    ("POST", "/v1/audio/encode"),
    ("GET", "/v1/audio/voices"),
    ("POST", "/v1/audio/voices"),
    ("GET", "/v1/audio/voices/{name}/embedding"),
    ("DELETE", "/v1/audio/voices/{name}"),
    ("GET", "/v1/audio/voices/{name}"),
    ("GET", "/v1/audio/voices/{name}/file"),
    ("POST", "/v1/audio/voices/import"),
    ("GET", "/v1/audio/voice_consents"),
    ("POST", "/v1/audio/voice_consents"),
    ("GET", "/v1/audio/voice_consents/{consent_id}"),
    ("POST", "/v1/audio/voice_consents/{consent_id}"),
    ("DELETE", "/v1/audio/voice_consents/{consent_id}"),
    ("POST", "/v1/text-to-speech/{voice_id}"),
    ("POST", "/v1/text-to-speech/{voice_id}/stream"),
    ("POST", "/v1/text-to-speech/{voice_id}/with-timestamps"),
    ("POST", "/v1/text-to-speech/{voice_id}/stream/with-timestamps"),
    ("GET", "/v1/voices"),
    ("GET", "/v1/voices/{voice_id}"),
    ("GET", "/v2/voices"),
    ("GET", "/v1/user"),
    ("GET", "/v1/user/subscription"),
    ("GET", "/v1/models"),
    ("POST", "/v1/models"),
    ("GET", "/v1/models/{model_id}"),
    ("DELETE", "/v1/models/{model_id}"),
    ("GET", "/files/{name}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/version"),
}


def cases() -> Iterator[tuple[str, str, schemathesis.GenerationMode]]:
    for method, path in sorted(_OPERATIONS):
        yield method, path, schemathesis.GenerationMode.POSITIVE
        if method == "POST":  # the others have no input that could violate the schema
            yield method, path, schemathesis.GenerationMode.NEGATIVE


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_of(_ENGINE, BASE_CARD, ServerConfig(max_text_chars=500)) as client:
        yield client


@pytest.fixture(scope="module")
def description(client: httpx.Client) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")


def test_every_endpoint_is_described(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == _OPERATIONS


def test_fields_are_described_as_validated(client: httpx.Client) -> None:
    models = client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("SpeechBody", "BatchBody"):
        fields = models[name]["properties"]
        assert fields["speaker"]["anyOf"] == fields["voice"]["anyOf"]
        assert fields["max_new_tokens"]["anyOf"][0]["minimum"] == 2
    assert models["BatchBody"]["properties"]["items"]["items"]["type"] == "object"


@pytest.mark.parametrize(("method", "path", "mode"), list(cases()))
def test_generated_requests_never_cause_a_5xx(
    client: httpx.Client,
    description: schemathesis.BaseSchema,
    method: str,
    path: str,
    mode: schemathesis.GenerationMode,
) -> None:
    operation = description[path][method]

    @hypothesis.settings(
        max_examples=40 if method == "POST" else 10,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        answer = case.call(timeout=600)
        assert answer.status_code < 500, (case.body, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    ask()
    eventually(lambda: _ENGINE.status().slots_active == 0)
