"""API keys, origins, readiness, metrics and the status endpoints."""

import contextlib
import re
import threading
import warnings
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from oscine import __version__
from oscine.config import ServerConfig
from oscine.server.app import build_app
from oscine.types import EngineHealth
from tests.server.scripted_engine import BASE_CARD, CARD, ScriptedEngine
from tests.server.serving import client_of, eventually, serving
from tests.websocket import connect

SPEECH = "/v1/audio/speech"
KEYS = ServerConfig(api_keys=("first-key", "second-key"), streams_per_key=1)


@pytest.mark.parametrize("path", [SPEECH, "/v1/models", "/v1/audio/voices", "/metrics", "/v1/nothing"])
def test_api_endpoints_need_a_key(engine: ScriptedEngine, path: str) -> None:
    with client_of(engine, CARD, KEYS) as client:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic first-key"}):
            answer = client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get(path, headers={"authorization": "Bearer second-key"}).status_code != 401


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/", "/docs", "/openapi.json"])
def test_health_checks_and_pages_need_no_key(engine: ScriptedEngine, path: str) -> None:
    with client_of(engine, CARD, KEYS) as client:
        assert client.get(path).status_code == 200


def test_a_key_has_a_limit_of_streams_and_gets_ended_ones_back(engine: ScriptedEngine) -> None:
    engine.frame_s = 0.01
    first, second = ({"authorization": f"Bearer {key}"} for key in KEYS.api_keys)
    body = {"input": "word " * 300, "response_format": "pcm"}
    with client_of(engine, CARD, KEYS) as client:
        with client.stream("POST", SPEECH, json=body, headers=first) as running:
            pieces = running.iter_raw()  # keep it: httpx closes the response when its iterator is collected
            next(pieces)
            refused = client.post(SPEECH, json=body, headers=first)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
            assert "this API key has 1 stream running (the maximum)" in refused.json()["error"]["message"]
            assert refused.headers["retry-after"] == "1"
            assert client.post(SPEECH, json={"input": "Hi."}, headers=second).status_code == 200
        eventually(lambda: engine.status().slots_active == 0)
        assert client.post(SPEECH, json={"input": "Hi."}, headers=first).status_code == 200


def test_the_first_request_leaves_the_warning_filters_alone(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They belong to the process, so two servers in two threads could not both change them."""
    threads = []

    class Watched(warnings.catch_warnings):
        def __enter__(self) -> Any:
            threads.append(threading.current_thread().name)
            return super().__enter__()

    with client_of(engine, CARD) as client:
        monkeypatch.setattr(warnings, "catch_warnings", Watched)
        assert client.get("/v1/audio/voices").status_code == 200
    assert "test-server" not in threads


def test_requests_get_503_while_the_engine_starts(engine: ScriptedEngine) -> None:
    engine.ready = False
    with client_of(engine, CARD, health=lambda: EngineHealth("restarting", restarts=2, last_reason="killed")) as client:
        answer = client.post(SPEECH, json={"input": "Hi."})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert "restarting" in answer.json()["error"]["message"] and answer.headers["retry-after"]
        ready = client.get("/ready")
        assert ready.status_code == 503
        about = {"ready": False, "state": "restarting", "restarts": 2, "last_failure": "killed", "failed": []}
        assert ready.json() == about
        health = client.get("/health")
        assert health.status_code == 200
        assert health.json() == {"status": "alive", "state": "restarting", "restarts": 2, "last_failure": "killed"}
        assert 'oscine_engine_restarts_total{model="scripted"} 2.0' in client.get("/metrics").text
        engine.ready = True
        assert client.get("/ready").status_code == 200


def test_the_liveness_check_fails_when_the_engine_has_failed(engine: ScriptedEngine) -> None:
    engine.ready = False
    with client_of(engine, CARD, health=lambda: EngineHealth("failed", restarts=7, last_reason="no memory")) as client:
        health = client.get("/health")
        assert health.status_code == 503
        assert health.json() == {"status": "failed", "state": "failed", "restarts": 7, "last_failure": "no memory"}
        assert client.get("/ready").json()["failed"] == ["scripted"]


def test_draining_completes_running_streams_and_refuses_new_ones(engine: ScriptedEngine) -> None:
    engine.frame_s = 0.01
    app = build_app(engine, CARD)
    with serving(app) as url, httpx.Client(base_url=url, trust_env=False, timeout=600) as client:
        with client.stream("POST", SPEECH, json={"input": "word " * 20, "response_format": "pcm"}) as running:
            pieces = running.iter_raw()
            next(pieces)
            app.state.service.draining = True
            assert client.post(SPEECH, json={"input": "Hi."}).status_code == 503
            assert client.get("/ready").json()["state"] == "draining"
            rest = b"".join(pieces)
        assert len(rest) > 90 * 3840


def test_a_request_id_is_kept_or_created(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        given = client.post(SPEECH, json={"input": "Hi."}, headers={"x-request-id": "my-id-7"})
        assert given.headers["x-request-id"] == "my-id-7"
        assert re.fullmatch(r"[0-9a-f]{16}", client.get("/version").headers["x-request-id"])
        strange = client.get("/nothing", headers={"x-request-id": "with space" * 40})
        assert re.fullmatch(r"[0-9a-f]{16}", strange.headers["x-request-id"])
        live = f"ws://{client.base_url.host}:{client.base_url.port}{SPEECH}/stream"
        with connect(live, additional_headers={"x-request-id": "my-id-9"}, proxy=None) as socket:
            assert socket.response and socket.response.headers["x-request-id"] == "my-id-9"


def test_a_websocket_of_an_unknown_path_is_not_found(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        host = f"ws://{client.base_url.host}:{client.base_url.port}"
        for path in (f"{SPEECH}/streams", "/v1/realtim", "/", "/playground/x"):
            with pytest.raises(InvalidStatus) as caught, connect(f"{host}{path}", proxy=None):
                pass
            response = caught.value.response
            assert response.status_code == 404 and response.headers["x-request-id"]
            assert response.body and f"WS {path} does not exist".encode() in response.body


def test_web_pages_of_other_origins_are_refused(engine: ScriptedEngine) -> None:
    body = {"input": "Hi.", "response_format": "pcm"}
    with client_of(engine, CARD, ServerConfig(cors_origins=("https://friend.example",))) as client:
        host = f"http://{client.base_url.host}:{client.base_url.port}"
        for origin, allowed in ((host, True), ("https://friend.example", True), ("https://other.example", False)):
            answer = client.post(SPEECH, json=body, headers={"origin": origin})
            assert answer.status_code == (200 if allowed else 403)
            refused = contextlib.nullcontext() if allowed else pytest.raises(InvalidStatus, match="403")
            with refused, connect(f"ws{host[4:]}{SPEECH}/stream", origin=Origin(origin)):
                pass


def test_web_pages_of_allowed_origins_can_read_errors(engine: ScriptedEngine) -> None:
    config = ServerConfig(cors_origins=("https://friend.example",), api_keys=("key",), max_body_bytes=2**20)
    friend, key = {"origin": "https://friend.example"}, {"authorization": "Bearer key"}
    with client_of(engine, CARD, config) as client:
        refused = client.post(SPEECH, json={"input": "Hi."}, headers=friend)
        too_large = client.post(SPEECH, content=bytes(2**20 + 1), headers=friend | key)
        spoken = client.post(SPEECH, json={"input": "Hi."}, headers=friend | key)
        for answer, status in ((refused, 401), (too_large, 413), (spoken, 200)):
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == "https://friend.example"
            assert answer.headers["access-control-expose-headers"] == "*"
        foreign = client.post(SPEECH, json={"input": "Hi."}, headers=key | {"origin": "https://other.example"})
        assert foreign.status_code == 403 and "access-control-allow-origin" not in foreign.headers


def test_a_preflight_needs_no_key_and_allows_configured_origins(engine: ScriptedEngine) -> None:
    config = ServerConfig(cors_origins=("https://friend.example",), api_keys=("key",))
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    with client_of(engine, CARD, config) as client:
        allowed = client.options(SPEECH, headers=preflight | {"origin": "https://friend.example"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-headers"] == "authorization"
        refused = client.options(SPEECH, headers=preflight | {"origin": "https://other.example"})
        assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/docs", "/version", "/v1/models", "/playground/style.css"])
def test_head_is_supported_wherever_get_is(engine: ScriptedEngine, path: str) -> None:
    with client_of(engine, CARD) as client:
        whole, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) == len(whole.content) > 0
        assert head.headers["content-type"] == whole.headers["content-type"]
        assert client.head(SPEECH).status_code == 405


def test_head_needs_a_key_where_get_does(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, KEYS) as client:
        assert client.head("/v1/models").status_code == 401


def test_a_path_is_quoted_in_the_log(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(engine, CARD) as client, caplog.at_level("DEBUG", "oscine"):
        client.get("/v1/x%0a12:00:00 info - forged%1b[31m%20status=200")
        # The line is written after the response.
        eventually(lambda: any(record.getMessage().startswith("GET ") for record in caplog.records))
    (record,) = [record for record in caplog.records if record.getMessage().startswith("GET ")]
    path = record.getMessage().split()[1]
    assert path == "/v1/x%0A12%3A00%3A00%20info%20-%20forged%1B%5B31m%20status%3D200"


def test_open_webui_has_a_base_url_of_its_own(engine: ScriptedEngine) -> None:
    """It reads {voice["id"]: voice["name"]} of `voices`, and its base URL is all that can be set."""
    with client_of(engine, CARD) as client:
        listed = client.get("/open-webui/v1/audio/voices").json()
        assert {one["id"]: one["name"] for one in listed["voices"]} == {name: name for name in CARD.speakers}
        assert listed == client.get("/v1/audio/voices?format=objects").json()
        assert client.get("/v1/audio/voices").json()["voices"] == list(CARD.speakers)
        assert client.get("/open-webui/v1/models").json() == client.get("/v1/models").json()
        spoken = client.post("/open-webui/v1/audio/speech", json={"input": "Hi.", "response_format": "wav"})
        assert spoken.status_code == 200 and spoken.headers["content-type"] == "audio/wav"
        assert client.get("/open-webui/health").status_code == 404


@pytest.mark.parametrize("path", ["/models", "/audio/voices", "/audio/speech"])
def test_open_webuis_base_url_needs_the_key_too(engine: ScriptedEngine, path: str) -> None:
    with client_of(engine, CARD, KEYS) as client:
        assert client.get(f"/open-webui/v1{path}").status_code == 401


def test_models_and_version_describe_the_served_checkpoint(engine: ScriptedEngine) -> None:
    with client_of(engine, BASE_CARD) as client:
        models = client.get("/v1/models").json()
        assert models["data"][0]["id"] == "scripted" and models["data"][0]["clones"] is True
        assert {"tts-1", "gpt-4o-mini-tts"} < {model["id"] for model in models["data"]}
        assert client.get("/version").json() == {"version": __version__, "model": "scripted", "kind": "base"}


def test_metrics_count_requests_and_audio(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm"})
        client.post(SPEECH, json={"input": "Hello.", "stream_format": "sse"})
        client.post(SPEECH, json={"input": ""})
        page = client.get("/metrics").text
    for line in (
        'oscine_requests_total{mode="http",model="scripted",status="200"} 1.0',
        'oscine_requests_total{mode="sse",model="scripted",status="200"} 1.0',
        'oscine_requests_total{mode="http",model="scripted",status="400"} 1.0',
        'oscine_finish_total{model="scripted",reason="stop"} 2.0',
        'oscine_ttfa_seconds_count{model="scripted"} 2.0',
        'oscine_audible_ttfa_seconds_count{model="scripted"} 2.0',
        'oscine_e2e_seconds_count{model="scripted"} 2.0',
        'oscine_frames_total{model="scripted"} 12.0',
        'oscine_slots{model="scripted"} 8.0',
        'oscine_queue_depth{model="scripted"} 0.0',
        'oscine_engine_ready{model="scripted"} 1.0',
        'oscine_engine_info{device="",model="scripted"} 1.0',
        'oscine_underruns_total{model="scripted"} 0.0',
        'oscine_frame_seconds_bucket{le="+Inf",model="scripted"} 0.0',
    ):
        assert line in page, line
    audio_s = float(re.search(r'^oscine_audio_seconds_total{model="scripted"} (\S+)', page, re.M)[1])  # type: ignore[index]
    assert audio_s == pytest.approx(12 * 0.08)


def test_metrics_count_invalid_requests(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        client.post(SPEECH, json={"inptu": "Hello."})
        client.post(SPEECH, content=b"{", headers={"content-type": "application/json"})
        client.get(SPEECH)
        client.post(f"{SPEECH}/batch", json={})
        client.post(f"{SPEECH}/batch", json={"items": [{}] * 33})
        client.post("/v1/audio/voices", json={})
        page = client.get("/metrics").text
    counted = set(re.findall(r'^oscine_requests_total{mode="(\w+)",model="",status="(\d+)"} (\S+)', page, re.M))
    assert counted == {("http", "400", "2.0"), ("http", "405", "1.0"), ("batch", "400", "2.0")}


def test_metrics_count_wrong_keys(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD, ServerConfig(api_keys=("s3cret",))) as client:
        assert client.post(SPEECH, json={"input": "Hello."}).status_code == 401
        page = client.get("/metrics", headers={"authorization": "Bearer s3cret"}).text
    assert 'oscine_requests_total{mode="http",model="",status="401"} 1.0' in page


def test_a_whole_file_has_no_time_to_first_audio(engine: ScriptedEngine) -> None:
    with client_of(engine, CARD) as client:
        client.post(SPEECH, json={"input": "Hello.", "response_format": "pcm", "stream": False})
        client.post(f"{SPEECH}/batch", json={"items": [{"input": "Hello."}]})
        page = client.get("/metrics").text
    for line in (
        'oscine_ttfa_seconds_count{model="scripted"} 0.0',
        'oscine_audible_ttfa_seconds_count{model="scripted"} 0.0',
        'oscine_e2e_seconds_count{model="scripted"} 2.0',
        'oscine_requests_total{mode="batch",model="scripted",status="200"} 1.0',
    ):
        assert line in page, line
    audio_s = float(re.search(r'^oscine_audio_seconds_total{model="scripted"} (\S+)', page, re.M)[1])  # type: ignore[index]
    assert audio_s == pytest.approx(12 * 0.08)


def test_the_log_has_figures_but_not_the_text(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(engine, CARD) as client, caplog.at_level("DEBUG", "oscine"):
        client.post(SPEECH, json={"input": "My secret diary."}, headers={"x-request-id": "my-id-8"})
        client.post(SPEECH, json={"input": "!refuse my secret diary"})
    lines = [f"{record.getMessage()} {record.__dict__.get('log_fields')}" for record in caplog.records]
    assert any("spoken" in line and "'chars': 16" in line for line in lines)
    assert not any("diary" in line for line in lines)
